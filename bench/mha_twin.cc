// Writes the same model with a kv head for each query head, to measure multi-head attention with:
//   mha_twin OUT.gguf MODEL.gguf
#include "tests/support/mha_twin.h"

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: mha_twin OUT.gguf MODEL.gguf (an architecture of llama)\n");
    return 2;
  }
  const auto written = headrace::test::write_mha_twin(argv[2], argv[1]);
  if (written.ok()) return 0;
  std::fprintf(stderr, "mha_twin: %s\n", written.error().message.c_str());
  return 1;
}
