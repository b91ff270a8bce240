// Errors between the ranks of a job: the exception at hand as one, and an Error as a text that another process makes one of again.
#pragma once
#include <string>
#include <string_view>

#include "core/error.h"

namespace octet {

// Within a catch block. What is no Error becomes one: no memory is ExitCode::device, anything else ExitCode::internal.
Error caught_error();

// Code, message, where and fix, whatever bytes they hold; not `shared`.
std::string error_text(const Error& error);
Error error_of_text(std::string_view text);   // as error_text() made it

}  // namespace octet
