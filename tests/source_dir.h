// Where the checkout lies. In a translation unit of its own, so that the other objects of two checkouts are the same (ccache).
#pragma once
#include <string>

namespace octet::test {
std::string source_dir();
}  // namespace octet::test
