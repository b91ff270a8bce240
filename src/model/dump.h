// Dump: the black box of one step. Collects copies of what entered and left the linear layers of matching modules; train/ writes them
// as a safetensors file that scripts/check_dump.py verifies against an independent implementation. docs/reference/dump.md has the names.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "ops/machine.h"

namespace octet {

class Dump {
 public:
  // machine: where the tensors lie.
  Dump(std::string module_glob, Machine& machine) : glob_(std::move(module_glob)), machine_(machine) {}

  struct Entry {
    std::string name;
    Dtype dtype;
    Shape shape;
    std::vector<std::byte> bytes;
  };
  struct ModuleSpecs {
    std::string module;
    QuantSpec x_row, x_col, w_row, w_col, dy_row, dy_col;
  };
  struct StoredScale {
    std::string site;
    float scale;
  };

  bool wants(const std::string& module) const { return glob_match(glob_, module); }
  void add(const std::string& entry_name, const MatrixView& m);
  // Codes and scales of a quantized operand in its contraction-last layout: entry_name + ".data", ".scale_inv". Unquantized: nothing.
  void add_image(const std::string& entry_name, const Operand& image);

  std::vector<Entry> entries;
  std::vector<ModuleSpecs> specs;
  std::vector<StoredScale> stored_scales;   // of delayed and static scaling

 private:
  struct Strided {
    const void* data;
    Dtype dtype;
    int64_t rows, cols, row_stride, col_stride;   // strides in elements
  };
  // Dense, and transposed when asked.
  void add(const std::string& entry_name, const Strided& m, bool transposed);

  std::string glob_;
  Machine& machine_;
};

}  // namespace octet
