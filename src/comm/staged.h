// A group on the memory of GPUs whose operations go through the host: for ranks that share a GPU, which NCCL refuses, and as what NCCL's results are compared with.
// The sums are those of the host's group. An operation is over when it returns: it waits for the device's work so far, copies, communicates and copies back.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

#include "comm/comm.h"

namespace octet {

// Bytes between host and device in the order of the device's work; `out` returns when they are there.
struct DeviceCopies {
  std::function<void(void* host, const void* device, size_t bytes)> out;
  std::function<void(void* device, const void* host, size_t bytes)> in;
};

std::unique_ptr<Comm> staged(std::unique_ptr<Comm> host, DeviceCopies copies);

// What makes the group on devices' memory of one on the host's: staged() with some copies, or NCCL's (comm/nccl.h). Called by all members.
using DeviceGroups = std::function<std::unique_ptr<Comm>(std::unique_ptr<Comm> host)>;
DeviceGroups staged_groups(DeviceCopies copies);

}  // namespace octet
