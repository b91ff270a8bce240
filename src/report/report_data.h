// The numbers the report's script draws from, as JSON that is safe inside a <script> element: no '<', '>', '&' or non-ASCII character.
//
// {"margin","twin_band","groups":[{"label","gap":{"tokens","mean","lower","upper"}|null}],
//  "runs":[{"name","group","twin","window","steps","step","tokens","lines"|null,"loss":POOLED,"grad_norm":POOLED,"lr":[],"tokens_per_s":[],
//           "valid":{"step","tokens","loss"},"bad":[steps]}],
//  "health":[{"run","total_sites","first","last","sites":[{"name","role","image","format"}],"underflow":[[..]..],...}]}
// POOLED is {"mean","low","high"}, or {"mean"} alone where every point is one step. Numbers have six significant digits; what is not finite
// is null. Names have control characters replaced.
#pragma once
#include <string>

#include "report/compare.h"

namespace octet::report {

std::string page_data(const Comparison& comparison);

}  // namespace octet::report
