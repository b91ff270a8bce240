// cuBLASLt does not run on the host: tests here make no products, and the device has no plans for them.
#include "cuda/device.h"

namespace octet::cuda {
void Device::Release::operator()(GemmPlans*) const {}
}  // namespace octet::cuda
