#include "cuda/nvtx.h"

#include <nvtx3/nvToolsExt.h>

namespace octet::cuda {

TraceHooks nvtx_hooks() {
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("octet");  // null without a profiler; lives as long as the process
  const auto push = [domain](const char* name) {
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    nvtxDomainRangePushEx(domain, &attributes);
  };
  return {push, [domain] { nvtxDomainRangePop(domain); }, {}};
}

}  // namespace octet::cuda
