#include "env/posix_program.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>

#include "base/check.h"
#include "env/file_descriptor.h"
#include "env/posix_error.h"

// The environment of this process, which POSIX declares nowhere.
extern char** environ;

namespace headrace {
namespace {

constexpr std::size_t err_bytes_kept = 4096;
constexpr int poll_milliseconds = 100;

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return posix_error("open", "a pipe", errno);
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// What the child finds when it starts: nothing to read, our pipes to write to, and the signals as
/// a program expects them rather than as we use them.
class ChildSetup {
 public:
  ChildSetup(int out, int err) {
    ::posix_spawn_file_actions_init(&files_);
    ::posix_spawn_file_actions_addopen(&files_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files_, out, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&files_, err, STDERR_FILENO);
    sigset_t defaults;
    ::sigemptyset(&defaults);
    ::sigaddset(&defaults, SIGPIPE);
    ::posix_spawnattr_init(&attributes_);
    ::posix_spawnattr_setsigdefault(&attributes_, &defaults);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGDEF);
  }
  ChildSetup(const ChildSetup&) = delete;
  ChildSetup& operator=(const ChildSetup&) = delete;
  ~ChildSetup() {
    ::posix_spawn_file_actions_destroy(&files_);
    ::posix_spawnattr_destroy(&attributes_);
  }

  Result<pid_t> spawn(const std::vector<std::string>& arguments) const {
    std::vector<std::string> copies = arguments;
    std::vector<char*> argv;
    argv.reserve(copies.size() + 1);
    for (std::string& argument : copies) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_t child = 0;
    const int reason = ::posix_spawnp(&child, argv[0], &files_, &attributes_, argv.data(), environ);
    if (reason != 0) return posix_error("run", arguments.front(), reason);
    return child;
  }

 private:
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

/// Moves what is there to `text`; false at the end.
bool read_some(int descriptor, std::string& text) {
  std::array<char, 65536> chunk;
  const ssize_t moved = ::read(descriptor, chunk.data(), chunk.size());
  if (moved < 0) return errno == EINTR || errno == EAGAIN;
  text.append(chunk.data(), static_cast<std::size_t>(moved));
  return moved > 0;
}

void keep_tail(std::string& text, std::size_t bytes) {
  if (text.size() > bytes) text.erase(0, text.size() - bytes);
}

/// Until the child has closed both. True if it was told to end.
bool collect(pid_t child, const Pipe& out, const Pipe& err, const ProgramStart& start,
             ProgramOutput& output) {
  bool cancelled = false;
  // A negative number is one that poll() passes over.
  std::array<pollfd, 2> watched = {pollfd{out.read_end.number(), POLLIN, 0},
                                   pollfd{err.read_end.number(), POLLIN, 0}};
  while (watched[0].fd >= 0 || watched[1].fd >= 0) {
    if (::poll(watched.data(), watched.size(), poll_milliseconds) > 0) {
      if (watched[0].revents != 0 && !read_some(watched[0].fd, output.out)) watched[0].fd = -1;
      if (watched[1].revents != 0 && !read_some(watched[1].fd, output.err)) watched[1].fd = -1;
      keep_tail(output.err, err_bytes_kept);
    }
    if (!cancelled && start.is_cancelled && start.is_cancelled()) {
      cancelled = true;
      ::kill(child, SIGTERM);
    }
  }
  return cancelled;
}

}  // namespace

Result<ProgramOutput> run_posix_program(const ProgramStart& start) {
  HEADRACE_CHECK(!start.arguments.empty(), "a program has a name");
  HEADRACE_TRY_ASSIGN(Pipe out, make_pipe());
  HEADRACE_TRY_ASSIGN(Pipe err, make_pipe());
  const ChildSetup setup(out.write_end.number(), err.write_end.number());
  HEADRACE_TRY_ASSIGN(const pid_t child, setup.spawn(start.arguments));
  // Ours would keep the pipes from ending.
  out.write_end.close();
  err.write_end.close();

  ProgramOutput output;
  const bool cancelled = collect(child, out, err, start, output);
  int status = 0;
  rusage usage = {};
  while (::wait4(child, &status, 0, &usage) < 0) {
    if (errno != EINTR) return posix_error("wait for", start.arguments.front(), errno);
  }
  if (cancelled) return Error{ErrorCode::cancelled, "stopped '" + start.arguments.front() + "'"};
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  // Before a child runs its program it is a copy of us, and Linux counts that too: what is not more
  // than we have ever held says nothing about the program.
  rusage own = {};
  const bool is_its_own = ::getrusage(RUSAGE_SELF, &own) == 0 && usage.ru_maxrss > own.ru_maxrss;
  output.peak_rss_bytes =
      is_its_own ? static_cast<std::uint64_t>(usage.ru_maxrss) * 1024 : 0;  // counted in KiB
  return output;
}

}  // namespace headrace
