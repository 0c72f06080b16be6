#include "lockstep/backend/mpi/transfer.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::backend::mpi {

using namespace std::chrono_literals;

void Pause::operator()() {
  constexpr int kTests = 100;
  constexpr int kYields = 500;
  constexpr Duration kShortest = 20us;
  constexpr Duration kLongest = 1ms;
  ++count_;
  if (count_ <= kTests) return;
  if (count_ <= kTests + kYields) {
    ::sched_yield();
    return;
  }
  const int slept = std::min(count_ - kTests - kYields, 50);
  std::this_thread::sleep_for(std::min<Duration>(kShortest * slept, kLongest));
}

Result<MessageType> MessageType::of(std::size_t bytes) {
  if (bytes <= kLargestPiece) return MessageType(MPI_BYTE, static_cast<int>(bytes));
  // Whole pieces, then the rest, as one element.
  const std::size_t pieces = bytes / kLargestPiece;
  MPI_Datatype piece = MPI_DATATYPE_NULL;
  LOCKSTEP_TRY(status_of(MPI_Type_contiguous(static_cast<int>(kLargestPiece), MPI_BYTE, &piece),
                         "MPI_Type_contiguous"));
  int lengths[] = {static_cast<int>(pieces), static_cast<int>(bytes % kLargestPiece)};
  MPI_Aint places[] = {0, static_cast<MPI_Aint>(pieces * kLargestPiece)};
  MPI_Datatype types[] = {piece, MPI_BYTE};
  MPI_Datatype whole = MPI_DATATYPE_NULL;
  Status made =
      status_of(MPI_Type_create_struct(2, lengths, places, types, &whole), "MPI_Type_create_struct");
  MPI_Type_free(&piece);
  LOCKSTEP_TRY(made);
  LOCKSTEP_TRY(status_of(MPI_Type_commit(&whole), "MPI_Type_commit"));
  return MessageType(whole, 1);
}

MessageType::MessageType(MessageType&& other) noexcept
    : type_(std::exchange(other.type_, MPI_BYTE)), count_(other.count_) {}

MessageType::~MessageType() {
  if (type_ != MPI_BYTE) MPI_Type_free(&type_);
}

std::size_t size_of(const MPI_Status& status) {
  MPI_Count bytes = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  return static_cast<std::size_t>(bytes);
}

ByteSpan Transfer::memory(std::size_t size) {
  owned_.push_back(std::make_unique_for_overwrite<std::byte[]>(size));
  return {owned_.back().get(), size};
}

std::vector<int>& Transfer::numbers(std::size_t count) { return numbers_.emplace_back(count); }

const std::byte* Transfer::readable(ByteView bytes) {
  if (uses_bytes_in_place() || bytes.empty()) return bytes.data();
  const ByteSpan copy = memory(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy.data();
}

MPI_Request* Transfer::next_request() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

Status Transfer::send(ByteView bytes, int peer, int tag, MPI_Comm comm) {
  LOCKSTEP_ASSIGN(MessageType type, MessageType::of(bytes.size()));
  const int result = MPI_Isend(bytes.data(), type.count(), type.type(), peer, tag, comm, next_request());
  types_.push_back(std::move(type));
  return status_of(result, "MPI_Isend");
}

Status Transfer::receive(ByteSpan bytes, int peer, int tag, MPI_Comm comm) {
  posted_.push_back({.request = requests_.size(), .peer = peer});
  return status_of(
      MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, peer, tag, comm, next_request()),
      "MPI_Irecv");
}

Status Transfer::let_in() {
  std::vector<int> waits_for;  // peers whose next message has not come
  for (std::size_t i = 0; i < expected_.size();) {
    const int peer = expected_[i].peer;
    bool here = false;
    if (std::find(waits_for.begin(), waits_for.end(), peer) == waits_for.end()) {
      LOCKSTEP_ASSIGN(here, let_in(expected_[i]));
    }
    if (here) {
      expected_.erase(expected_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      waits_for.push_back(peer);
      ++i;
    }
  }
  return {};
}

Result<bool> Transfer::let_in(const Expected& expected) {
  int here = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  LOCKSTEP_TRY(status_of(MPI_Improbe(expected.peer, expected.tag, expected.comm, &here, &message, &status),
                         "MPI_Improbe"));
  if (here == 0) return false;
  const std::size_t size = size_of(status);
  const bool fits = size == expected.bytes.size();
  std::byte* const to = fits ? expected.bytes.data() : memory(size).data();
  LOCKSTEP_ASSIGN(MessageType type, MessageType::of(size));
  LOCKSTEP_TRY(status_of(MPI_Imrecv(to, type.count(), type.type(), &message, next_request()), "MPI_Imrecv"));
  types_.push_back(std::move(type));
  if (fits) return true;
  return Status(Code::kInvalid,
                cat("rank ", expected.peer, " of the group has sent ", Bytes{size}, " where ",
                    Bytes{expected.bytes.size()}, " are expected"),
                {.failure = Failure::kDesync, .peer = Rank{expected.peer}});
}

Result<bool> Transfer::test() {
  LOCKSTEP_TRY(let_in());
  while (complete_ < requests_.size()) {
    int done = 0;
    LOCKSTEP_TRY(status_of(MPI_Test(&requests_[complete_], &done, MPI_STATUS_IGNORE), "MPI_Test"));
    if (done == 0) return false;
    ++complete_;
  }
  return expected_.empty();
}

Status Transfer::wait(const Deadline& deadline, const std::function<Status()>& look) {
  constexpr int kLookEvery = 16;
  Pause pause;
  for (;;) {
    LOCKSTEP_ASSIGN(const bool complete, test());
    if (complete) break;
    if (pause.count() % kLookEvery == kLookEvery - 1) {
      LOCKSTEP_TRY(look());
      if (deadline.expired()) return Status::timeout("it has not ended in time");
    }
    pause();
  }
  for (const auto& step : steps_) step();
  return {};
}

std::vector<int> Transfer::withdraw_receives() {
  std::vector<int> peers;
  for (const Posted& posted : posted_) {
    MPI_Request& request = requests_[posted.request];
    if (request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&request);
    int done = 0;
    int cancelled = 0;
    MPI_Status status;
    MPI_Test(&request, &done, &status);
    if (done != 0) MPI_Test_cancelled(&status, &cancelled);
    if (done == 0 || cancelled != 0) peers.push_back(posted.peer);
  }
  return peers;
}

bool Transfer::under_way() const {
  return std::any_of(requests_.begin(), requests_.end(),
                     [](const MPI_Request& request) { return request != MPI_REQUEST_NULL; });
}

bool Transfer::given_back() {
  for (MPI_Request& request : requests_) {
    int done = 0;
    if (request != MPI_REQUEST_NULL && MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
        done == 0)
      return false;
  }
  return true;
}

}  // namespace lockstep::backend::mpi
