#pragma once
// A program with its input and output in our hands.

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace segfuse::test {

/// The first line of a file that begins so; "" without one.
inline std::string line_of(const std::string& path, const std::string& beginning) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(beginning)) return line;
  return "";
}

class Child {
 public:
  explicit Child(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
    int in[2];
    int out[2];
    if (pipe(in) != 0 || pipe(out) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    for (const int descriptor : {in[0], in[1], out[0], out[1]})
      posix_spawn_file_actions_addclose(&actions, descriptor);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    std::vector<char*> envp;
    for (char** entry = environ; *entry != nullptr; ++entry) envp.push_back(*entry);
    for (std::string& entry : environment) envp.push_back(entry.data());
    envp.push_back(nullptr);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data()) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    input_ = fdopen(in[1], "w");
    output_ = fdopen(out[0], "r");
  }
  ~Child() {
    if (input_ != nullptr) std::fclose(input_);
    if (output_ != nullptr) std::fclose(output_);
    if (pid_ > 0 && !waited_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int pid() const { return pid_; }
  void say(const std::string& line) {
    std::fputs((line + "\n").c_str(), input_);
    std::fflush(input_);
  }
  /// The next line without its end; "" at the end.
  std::string line() {
    char text[4096];
    if (std::fgets(text, sizeof text, output_) == nullptr) return "";
    std::string line = text;
    while (!line.empty() && line.back() == '\n') line.pop_back();
    return line;
  }
  /// Lines up to "ready".
  std::vector<std::string> lines_until_ready() {
    std::vector<std::string> lines;
    for (std::string next = line(); !next.empty() && next != "ready"; next = line())
      lines.push_back(next);
    return lines;
  }
  void end() {
    std::fclose(input_);
    input_ = nullptr;
    while (!line().empty()) {
    }
  }
  void kill_and_wait() {
    kill(pid_, SIGKILL);
    wait();
  }
  /// As waitpid tells it.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    waited_ = true;
    return status;
  }

 private:
  pid_t pid_ = -1;
  bool waited_ = false;
  std::FILE* input_ = nullptr;
  std::FILE* output_ = nullptr;
};

/// Times depend on the machine and on what else it does, so they are compared in the long tests.
inline bool times_are_tested() { return std::getenv("SEGFUSE_LONG") != nullptr; }

}  // namespace segfuse::test
