// The report page's script and style: page/*.js and page/report.css, embedded by page/embed.cmake into a generated .cpp.
#pragma once
#include <string_view>

namespace octet::report::page {

extern const std::string_view script;         // one function that calls itself
extern const std::string_view script_sha256;  // of exactly those bytes, 64 hexadecimal digits
extern const std::string_view style;

}  // namespace octet::report::page
