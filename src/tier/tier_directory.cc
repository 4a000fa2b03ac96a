#include "tier/tier_directory.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <ranges>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/no_memory.h"

namespace headrace {
namespace {

constexpr std::string_view lock_name = "headrace.lock";
constexpr std::string_view probe_prefix = "probe-";
constexpr std::string_view probe_suffix = ".hrt";
constexpr std::size_t random_digits = 16;

std::string probe_name(std::uint64_t random) {
  std::array<char, random_digits + 1> digits;
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(random));
  return std::string(probe_prefix) + digits.data() + std::string(probe_suffix);
}

/// Exactly the names that probe_name() makes, so that nobody else's file is taken for ours.
bool is_probe_name(std::string_view name) {
  constexpr std::size_t size = probe_prefix.size() + random_digits + probe_suffix.size();
  if (name.size() != size) return false;
  const std::string_view digits = name.substr(probe_prefix.size(), random_digits);
  return name.starts_with(probe_prefix) && name.ends_with(probe_suffix) &&
         digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// "a/b/c" gives "a", "a/b", "a/b/c" as far as they do not exist yet.
std::vector<std::string> missing_directories(Env& env, const std::string& path) {
  std::vector<std::string> missing;
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    std::string prefix = path.substr(0, end);
    if (!env.exists(prefix)) missing.push_back(std::move(prefix));
    if (end == std::string::npos) return missing;
  }
}

Error with_advice(const std::string& what, const std::string& path, const Error& error) {
  return {ErrorCode::io, "--kv-disk: cannot " + what + " '" + path + "': " + error.message +
                             "; choose another directory"};
}

void warn(const Error& error) { log_message(LogLevel::warn, "kv disk: " + error.message); }

}  // namespace

Result<std::unique_ptr<TierDirectory>> TierDirectory::open(Env& env, const std::string& path) {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  if (trimmed.empty()) {
    return Error{ErrorCode::invalid_argument, "--kv-disk: no directory given"};
  }
  // On every error below the destructor undoes what was done so far.
  std::unique_ptr<TierDirectory> directory(new TierDirectory(env, std::move(trimmed)));
  HEADRACE_TRY(directory->make());
  HEADRACE_TRY(directory->claim());
  directory->remove_stale_files();
  HEADRACE_TRY(directory->probe());
  return directory;
}

TierDirectory::~TierDirectory() {
  static_cast<void>(has_memory_for([this] { end(); }));
}

void TierDirectory::end() {
  if (lock_ != nullptr) {
    // Held until the directories are gone too, so that nobody claims what is about to vanish. See
    // docs/formats/segment.md for a process that has opened this lock file but not locked it yet.
    if (auto removed = env_.remove_file(file_path(std::string(lock_name))); !removed.ok()) {
      warn(removed.error());
    }
  }
  for (const std::string& made : std::views::reverse(made_)) {
    // Fails when somebody has put a file there meanwhile. It is theirs, so the directory stays.
    if (auto removed = env_.remove_directory(made); !removed.ok()) break;
  }
}

Result<void> TierDirectory::make() {
  std::vector<std::string> missing = missing_directories(env_, path_);
  auto made = env_.make_directories(path_);
  // Also after an error: the outer ones may have been made.
  std::ranges::copy_if(missing, std::back_inserter(made_),
                       [this](const std::string& directory) { return env_.exists(directory); });
  if (!made.ok()) return with_advice("make", path_, made.error());
  return {};
}

Result<void> TierDirectory::claim() {
  auto lock = env_.lock_file(file_path(std::string(lock_name)));
  if (!lock.ok()) return with_advice("use", path_, lock.error());
  lock_ = std::move(lock).value();
  return {};
}

void TierDirectory::remove_stale_files() {
  auto names = env_.list_directory(path_);
  if (!names.ok()) return warn(names.error());
  for (const std::string& name : *names) {
    if (!is_probe_name(name)) continue;
    // We hold the lock, so its owner is gone. If it cannot be removed it only costs room.
    if (auto removed = env_.remove_file(file_path(name)); !removed.ok()) warn(removed.error());
  }
}

Result<void> TierDirectory::probe() {
  // The lock file may have been there before, so it proves nothing.
  const std::string path = file_path(probe_name(env_.random()));
  auto file = env_.open_file(path, OpenMode::create_new);
  if (!file.ok()) return with_advice("write in", path_, file.error());
  file->reset();
  if (auto removed = env_.remove_file(path); !removed.ok()) {
    return with_advice("remove a file in", path_, removed.error());
  }
  return {};
}

bool TierDirectory::is_own_name(const std::string& name) {
  return name == lock_name || is_probe_name(name);
}

std::string TierDirectory::file_path(const std::string& name) const {
  return path_ == "/" ? path_ + name : path_ + "/" + name;
}

}  // namespace headrace
