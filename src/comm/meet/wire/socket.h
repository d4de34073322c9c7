#pragma once
// TCP sockets and the names of machines.

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/os/descriptor.h"

namespace segfuse::comm::meet {

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

/// What a name stands for, in the system's order; `port` goes into each. Throws CommError.
std::vector<Address> resolve(const std::string& host, int port);

/// A socket that listens at a port, 0 for any free one: on this machine alone where `host` is a
/// name of the loopback, on all of its networks else. Throws CommError that says who has the port.
Descriptor listen_at(const std::string& host, int port);
int port_of(int socket);
/// Where a process of this machine reaches what listens there.
std::vector<Address> ways_to(int listening);

/// A socket that is being connected: writable when that is over, one way or the other. None (-1)
/// where it cannot even begin.
Descriptor begin_connect(const Address& address);
/// The errno of a connection that is over; 0: it stands.
int error_of(int socket);
/// The next one who connects; none (-1) where nobody is, with errno.
Descriptor accept_one(int listening);

/// Raises this process's limit of open descriptors to so many, where it may.
void allow_descriptors(std::int64_t count);
/// The name by which others reach this machine.
std::string own_host();
/// The address that this machine has for one that is reached by that name, as digits; empty where
/// it is this machine's own loopback.
std::string own_address_for(const std::string& host, int port);
/// "pid 812 (python3)", "a process of user 1000": who listens at a port of this machine; empty
/// where the system does not say.
std::string listener_at(int port);

}  // namespace segfuse::comm::meet
