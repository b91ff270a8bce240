// The version of Octet, as in CMakeLists.txt.
#pragma once
namespace octet {
inline constexpr const char* version = OCTET_VERSION;
}
