#pragma once
// The messages of ranks after they have proved the key. A message is at most 64 KiB; one that
// is not exactly what it should be is a DataError.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "comm/meet/state.h"

namespace segfuse::comm::meet {

inline constexpr std::size_t kLongestMessage = std::size_t{64} << 10;
inline constexpr std::size_t kLongestText = std::size_t{32} << 10;  ///< of one rank in a gather
inline constexpr std::size_t kLongestHost = 255;

/// Values on which all ranks have to agree, by names that a user understands.
using Values = std::map<std::string, std::string>;

/// The first thing that went wrong, as every rank learns it.
struct Failure {
  bool usage = false;      ///< the ranks were started wrongly: UsageError; else CommError
  std::int64_t rank = -1;  ///< whose fault; -1: no single one's
  std::string sentence{};
  std::int64_t said = 0;  ///< the exit code with which that rank says it itself; 0: it does not
};

// From a rank.
struct Here {  ///< once
  std::string host{};
  std::int64_t pid = 0;
  Values values{};
};
struct Beat {  ///< also to a rank: that of rank 0
  State state{};
};
struct Text {               ///< for a gather
  std::uint64_t round = 0;  ///< of its generation
  std::string text{};
  std::int64_t generation = 0;
};
struct Trouble {  ///< its own failure, or what a library said to it of another's
  bool hint = false;
  std::string sentence{};
  std::int64_t said = 0;  ///< as Failure::said
  std::int64_t generation = 0;
  std::int64_t about = -1;  ///< of a hint: the rank that it did not reach; -1: not known
};
struct Bye {  ///< its work is done; to a rank: everybody's is
  std::int64_t generation = 0;
};
struct Knock {};  ///< of a newcomer: it can begin to work
struct Admit {    ///< of rank 0: those that have knocked belong to the ranks from now on
  std::int64_t generation = 0;
};
struct Note {  ///< of rank 0, for newcomers; to one of them
  std::string name{};
  std::string text{};
};

// To a rank.
struct Agreed {  ///< all have come, and the values are equal
  std::string host{};
  std::int64_t pid = 0;
  bool late = false;  ///< the others are at work already: this one is a newcomer
};
struct Texts {  ///< of the ranks of the generation, from the `first` of them on
  std::uint64_t round = 0;
  std::int64_t first = 0;
  std::vector<std::string> texts{};
  std::int64_t generation = 0;
};
struct Changed {  ///< a rank was lost, or newcomers were taken in
  std::int64_t generation = 0;
  Failure loss{};                     ///< no rank where none was lost
  std::vector<std::int64_t> ranks{};  ///< of this generation, in order
};
struct Ended {
  Failure failure{};
};

// To one who looks.
struct Row {
  std::int64_t rank = 0;
  std::string host{};
  std::int64_t pid = 0;
  State state{};
  double silent = 0;     ///< seconds since it was heard
  bool here = false;     ///< it has come
  bool left = false;     ///< its work is done
  bool awaited = false;  ///< others wait for it
  bool lost = false;     ///< the others go on without it
};
struct Rows {
  std::int64_t count = 0;  ///< of all ranks
  std::string failure{};   ///< empty: none
  std::vector<Row> rows{};
  std::int64_t generation = 0;  ///< of the ranks that are left
};

using Message = std::variant<Here, Beat, Text, Trouble, Bye, Agreed, Texts, Ended, Rows, Changed,
                             Knock, Admit, Note>;

std::string encode(const Message& message);
/// Throws DataError.
Message decode(std::string_view bytes);

/// A state alone.
std::string encode(const State& state);
State decode_state(std::string_view bytes);

/// The table in messages that are short enough.
std::vector<Rows> in_pieces(const Rows& rows);

}  // namespace segfuse::comm::meet
