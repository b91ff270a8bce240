#include "source_dir.h"

namespace octet::test {
std::string source_dir() { return OCTET_SOURCE_DIR; }
}  // namespace octet::test
