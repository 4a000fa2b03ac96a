// llama.cpp reports problems by logging them. Here its log is kept off our standard error, and what
// it says about a failure can be read back for the one line that we print.
#pragma once

#include <string>

namespace headrace {

/// While this lives, error lines that llama.cpp logs on this thread are kept instead of dropped.
/// Nestable. The first one made in a process takes over llama.cpp's (process-wide) log.
class LlamaLogCapture {
 public:
  LlamaLogCapture();
  ~LlamaLogCapture();
  LlamaLogCapture(const LlamaLogCapture&) = delete;
  LlamaLogCapture& operator=(const LlamaLogCapture&) = delete;

  /// The first error line, without the name of the C++ function that wrote it. Empty if there was
  /// none.
  std::string first_error() const;

 private:
  std::string errors_;
  std::string* previous_;
};

}  // namespace headrace
