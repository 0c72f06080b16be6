// How the ranks that are left of a world agree, through its store, on who goes on. docs/failures.md tells
// the protocol in words ("Shrinking").
//
// A round of it is an Agreement: decide() gives all who come the same list; when each has done its part,
// settle() says to all of them whether everybody has. If not, there is another round without those that were
// lost meanwhile.
//
// Thread safety: none.
// Errors: kLeftOut for a rank that is not on the list; what the store says (kStoreLost), also if it does not
// answer within `patience`.
// Does not: know what a rank is lost by, or what is done with the list.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/status.h"
#include "lockstep/base/types.h"
#include "lockstep/store/store.h"
#include "lockstep/store/watched_wait.h"

namespace lockstep::backend {

// Why a rank is out, as far as another one knows.
struct Loss {
  // The values are written to the store.
  enum class Kind : std::uint8_t {
    kSuspected = 0,  // stopped, or cannot be reached; it may see it otherwise
    kDead = 1,       // it will not come
    kNamed = 2,      // the program says so, or it says so itself
  };
  Kind kind = Kind::kSuspected;
  std::string why = {};  // completes "rank 3 was left out: "

  bool operator==(const Loss&) const = default;
};
using Losses = std::map<Rank, Loss>;
// What each rank that came has said.
using Reports = std::map<Rank, Losses>;

// Pure. Who is out after these reports: whoever is named (by one that is not named by a lower rank); whoever
// is lost to someone and has not come; and of those that came but are lost to each other as few as needed:
// first the one in most such quarrels, then the one that most others miss, then the highest.
Losses resolve(const Reports& reports);
// Pure. Whether `reports` are enough to decide at once: every member came, or is dead or named; or those that
// are out cannot be more than those that came, so that two halves of a world do not each go on alone.
bool can_decide(const std::vector<Rank>& members, const Reports& reports);

struct AgreementOptions {
  std::string prefix;         // of its keys; the same on all ranks, and used once
  Rank rank;                  // this one
  std::vector<Rank> members;  // who may come, ascending; the same list on all of them
  Duration patience;          // how long to wait for those that are not known to be lost
  // Whom this rank knows to be lost; asked at least every 100 ms.
  std::function<Losses()> losses;
  store::Look look = {};  // asked while the store does not answer; what it finds ends the call
};

class Agreement {
 public:
  Agreement(AgreementOptions options, store::Store& store, const Clock& clock);

  // Who goes on, ascending.
  Result<std::vector<Rank>> decide();
  enum class Verdict : bool { kAgain, kGo };
  // Between the two: kDisconnected once the verdict is there, which before settle() can only be kAgain.
  Status look();
  // After decide(). `done` says whether this rank's own part has succeeded.
  Result<Verdict> settle(const Status& done);

  // Instead of decide(): this rank cannot go on, and nobody needs to wait for it.
  Status withdraw(const std::string& why);

 private:
  std::string key(std::string_view what, Rank rank) const;
  std::string verdict_key() const { return options_.prefix + "/verdict"; }
  // A call of the store, as store::watched_call().
  template <typename Call>
  auto ask(const Call& call) -> decltype(call(std::declval<Deadline>()));
  Result<bool> has(const std::string& key);
  Status write(const std::string& key, std::string_view value);
  // What `key` is after this, the first of all proposals.
  Result<Buffer> propose(const std::string& key, std::string_view value);
  Status no_answer(const Status& met) const;
  Status read_reports(const std::vector<Rank>& pending, Reports& reports);
  Result<std::vector<Rank>> accept(ByteView decision);

  const AgreementOptions options_;
  store::Store& store_;
  const Clock& clock_;
  std::vector<Rank> left_;
};

}  // namespace lockstep::backend
