#include "extension/rank_names.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::python {
namespace {

constexpr std::size_t kMost = 16;  // that are listed

}  // namespace

RankNames::RankNames(const std::vector<Rank>& world, std::vector<int> torch, int own)
    : torchs_(std::move(torch)), own_(static_cast<std::size_t>(own)) {
  std::vector<std::string> pairs;
  bool alike = true;
  for (std::size_t i = 0; i < torchs_.size(); ++i) {
    alike = alike && world[i].value == torchs_[i];
    if (i < kMost) pairs.push_back(cat(world[i], " is ", torchs_[i]));
  }
  if (alike) return;
  note_ = cat(" (Ranks are those of its world. As torch counts: ", base::join(pairs),
              torchs_.size() > kMost ? ", ..." : "", ".)");
}

Status RankNames::told(const Status& status) const {
  if (note_.empty()) return status;
  return Status(status.code(), cat(status.message(), note_), status.cause());
}

}  // namespace lockstep::python
