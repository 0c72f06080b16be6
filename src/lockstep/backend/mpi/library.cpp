#include "lockstep/backend/mpi/library.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/text.h"

namespace lockstep::backend::mpi {
namespace {

constexpr Logger kLog("mpi");

struct Library {
  Mutex mutex;
  std::vector<std::shared_ptr<Abandoned>> abandoned LOCKSTEP_GUARDED_BY(mutex);
};

// Never destroyed: MPI may write to what was abandoned until the process is gone.
Library& library() {
  static auto* const kLibrary = new Library;
  return *kLibrary;
}

void forget_given_back(Library& lib) LOCKSTEP_REQUIRES(lib.mutex) {
  std::erase_if(lib.abandoned, [](const auto& what) { return what->given_back(); });
}

void finish_at_exit() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  Library& lib = library();
  {
    const MutexLock lock(lib.mutex);
    forget_given_back(lib);
    if (!lib.abandoned.empty()) {
      kLog.warn(cat("MPI is not finalised, because ", lib.abandoned.size(),
                    " operations that were given up are still under way; mpirun will end the job."));
      return;
    }
  }
  MPI_Finalize();
}

std::string threads_text(int provided) {
  switch (provided) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    default:
      return cat("level ", provided);
  }
}

Code code_of(int error_class) {
  switch (error_class) {
    case MPI_ERR_BUFFER:
    case MPI_ERR_COUNT:
    case MPI_ERR_TYPE:
    case MPI_ERR_TAG:
    case MPI_ERR_COMM:
    case MPI_ERR_RANK:
    case MPI_ERR_ROOT:
    case MPI_ERR_GROUP:
    case MPI_ERR_OP:
    case MPI_ERR_ARG:
    case MPI_ERR_TRUNCATE:
      return Code::kInvalid;
    case MPI_ERR_UNSUPPORTED_OPERATION:
      return Code::kUnsupported;
    default:
      return Code::kInternal;
  }
}

}  // namespace

Status start_library() {
  int finalized = 0;
  int initialized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    return Status::invalid(
        "MPI was finalised in this process and cannot be initialised again; join before MPI_Finalize().");
  }
  MPI_Initialized(&initialized);
  int provided = MPI_THREAD_SINGLE;
  if (initialized != 0) {
    LOCKSTEP_TRY(status_of(MPI_Query_thread(&provided), "MPI_Query_thread"));
    if (provided >= MPI_THREAD_MULTIPLE) return {};
    return Status::unsupported(cat("this program has initialised MPI with ", threads_text(provided),
                                   ", but MPI_THREAD_MULTIPLE is needed: ask for it with MPI_Init_thread(), "
                                   "or let join_mpi() initialise MPI."));
  }
  LOCKSTEP_TRY(
      status_of(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread"));
  (void)std::atexit(finish_at_exit);
  if (provided >= MPI_THREAD_MULTIPLE) return {};
  return Status::unsupported(cat("this MPI library allows ", threads_text(provided),
                                 " at most, but MPI_THREAD_MULTIPLE is needed: use one that was built with "
                                 "threads (Open MPI 4: --enable-mpi-thread-multiple)."));
}

Status status_of(int result, std::string_view call) {
  if (result == MPI_SUCCESS) return {};
  int error_class = MPI_ERR_UNKNOWN;
  MPI_Error_class(result, &error_class);
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  Cause cause;
  if (error_class == MPI_ERR_NO_MEM) cause.failure = Failure::kNoMemory;
  Code code = code_of(error_class);
#ifdef MPI_ERR_PROC_FAILED
  if (error_class == MPI_ERR_PROC_FAILED || error_class == MPI_ERR_PROC_FAILED_PENDING) {
    cause.failure = Failure::kPeerDied;
    code = Code::kDisconnected;
  }
#endif
  return {code, cat(call, ": ", std::string_view(text, static_cast<std::size_t>(length))), cause};
}

int largest_tag() {
  void* value = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found);
  constexpr int kPromised = 32767;
  return found != 0 && value != nullptr ? *static_cast<int*>(value) : kPromised;
}

void abandon(std::shared_ptr<Abandoned> what) {
  Library& lib = library();
  const MutexLock lock(lib.mutex);
  forget_given_back(lib);
  lib.abandoned.push_back(std::move(what));
}

}  // namespace lockstep::backend::mpi
