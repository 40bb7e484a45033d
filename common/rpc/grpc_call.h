// What both sides of gRPC calls share: conversion between gRPC's and Abseil's statuses (their codes
// are the same numbers), and deadlines. Files that include this header do not see gRPC's headers.
// Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace tandem::rpc {

grpc::Status ToGrpc(const absl::Status& status);

// Converts with the same code. The message of an error becomes "WHERE: MESSAGE".
absl::Status FromGrpc(const grpc::Status& status, const std::string& where);

absl::StatusCode CodeOf(const grpc::Status& status);

// Sets the deadline of a call, counted from now.
void SetDeadline(grpc::ClientContext& context, absl::Duration from_now);

}  // namespace tandem::rpc
