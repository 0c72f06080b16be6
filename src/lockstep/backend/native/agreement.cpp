#include "lockstep/backend/native/agreement.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <type_traits>

#include "lockstep/base/text.h"

namespace lockstep::backend {
namespace {

constexpr Duration kSlice = std::chrono::milliseconds(100);
// The least time that the store has for an answer.
constexpr Duration kAnswer = std::chrono::seconds(1);
constexpr std::string_view kReady = "ready";
constexpr std::string_view kFailed = "failed";
constexpr std::string_view kGo = "go";
constexpr std::string_view kAgain = "again";

// One line per loss: rank, kind, why.
std::string write_losses(const Losses& losses) {
  std::string text;
  for (const auto& [rank, loss] : losses) {
    std::string why = loss.why;
    std::replace(why.begin(), why.end(), '\n', ' ');
    text += cat(rank, ' ', static_cast<int>(loss.kind), ' ', why, '\n');
  }
  return text;
}

Losses parse_losses(std::string_view text) {
  Losses losses;
  for (const std::string& line : base::split(text, '\n')) {
    const std::vector<std::string> words = base::split(line, ' ');
    if (words.size() < 3) continue;
    const auto rank = base::parse_integer<int>(words[0]);
    const auto kind = base::parse_integer<int>(words[1]);
    if (!rank || !kind || *kind < 0 || *kind > static_cast<int>(Loss::Kind::kNamed)) continue;
    const std::size_t said = words[0].size() + words[1].size() + 2;
    losses[Rank{*rank}] = {.kind = static_cast<Loss::Kind>(*kind), .why = line.substr(said)};
  }
  return losses;
}

// The first line lists who goes on; the others say who does not.
std::string write_decision(const std::vector<Rank>& left, const Losses& out) {
  std::vector<std::string> ranks;
  ranks.reserve(left.size());
  for (const Rank rank : left) ranks.push_back(cat(rank));
  return cat(base::join(ranks, " "), '\n', write_losses(out));
}

std::vector<Rank> without(const std::vector<Rank>& ranks, const auto& gone) {
  std::vector<Rank> rest;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(rest),
               [&gone](Rank rank) { return !gone.contains(rank); });
  return rest;
}

// The next one to be out among those that came, if two of them are lost to each other.
std::optional<std::pair<Rank, Loss>> worst_quarrel(const Reports& reports, const Losses& out) {
  std::map<Rank, std::set<Rank>> quarrels;
  std::map<Rank, int> missed_by;
  std::map<Rank, Loss> loss_of;
  for (const auto& [rank, losses] : reports) {
    if (out.contains(rank)) continue;
    for (const auto& [lost, loss] : losses) {
      if (lost == rank || out.contains(lost) || !reports.contains(lost)) continue;
      quarrels[rank].insert(lost);
      quarrels[lost].insert(rank);
      ++missed_by[lost];
      loss_of.try_emplace(lost, loss);
    }
  }
  if (quarrels.empty()) return std::nullopt;
  const auto weight = [&](Rank rank) { return std::tuple(quarrels[rank].size(), missed_by[rank], rank); };
  const Rank worst = std::max_element(quarrels.begin(), quarrels.end(), [&](const auto& a, const auto& b) {
                       return weight(a.first) < weight(b.first);
                     })->first;
  const auto known = loss_of.find(worst);
  if (known != loss_of.end()) return std::pair(worst, known->second);
  return std::pair(worst, Loss{.why = "it has lost ranks that the others have not"});
}

}  // namespace

Losses resolve(const Reports& reports) {
  Losses out;
  for (const auto& [rank, losses] : reports) {
    if (const auto own = out.find(rank); own != out.end() && own->second.kind == Loss::Kind::kNamed) continue;
    for (const auto& [lost, loss] : losses) {
      if (loss.kind == Loss::Kind::kNamed) out[lost] = loss;
      if (!reports.contains(lost)) out.try_emplace(lost, loss);
    }
  }
  while (const auto worst = worst_quarrel(reports, out)) out.insert(*worst);
  return out;
}

bool can_decide(const std::vector<Rank>& members, const Reports& reports) {
  const Losses out = resolve(reports);
  std::vector<Rank> may_come;  // that are neither dead nor named
  std::size_t came = 0;
  for (const Rank member : members) {
    const auto lost = out.find(member);
    const bool here = reports.contains(member);
    if (!here && lost == out.end()) return false;
    if (lost != out.end() && lost->second.kind != Loss::Kind::kSuspected) continue;
    may_come.push_back(member);
    came += here ? 1 : 0;
  }
  if (2 * came != may_come.size()) return 2 * came > may_come.size();
  return may_come.empty() || reports.contains(may_come.front());
}

Agreement::Agreement(AgreementOptions options, store::Store& store, const Clock& clock)
    : options_(std::move(options)), store_(store), clock_(clock) {}

std::string Agreement::key(std::string_view what, Rank rank) const {
  return cat(options_.prefix, '/', what, '/', rank);
}

Status Agreement::no_answer(const Status& met) const {
  return Status::disconnected(
      cat("rank ", options_.rank, ": without the store nobody can shrink the world: ", met.message()),
      {.failure = Failure::kStoreLost, .rank = options_.rank, .op = "shrink"});
}

template <typename Call>
auto Agreement::ask(const Call& call) -> decltype(call(std::declval<Deadline>())) {
  auto answer = store::watched_call(clock_.in(std::max(options_.patience, kAnswer)), options_.look, call);
  if constexpr (std::is_same_v<decltype(answer), Status>) {
    return answer.code() == Code::kTimeout ? no_answer(answer) : answer;
  } else {
    if (answer.status().code() == Code::kTimeout) return no_answer(answer.status());
    return answer;
  }
}

Result<bool> Agreement::has(const std::string& key) {
  return ask([&](const Deadline& until) { return store_.check({&key, 1}, until); });
}

Status Agreement::write(const std::string& key, std::string_view value) {
  return ask([&](const Deadline& until) { return store_.set(key, bytes_of(value), until); });
}

Result<Buffer> Agreement::propose(const std::string& key, std::string_view value) {
  return ask([&](const Deadline& until) { return store_.compare_set(key, {}, bytes_of(value), until); });
}

Status Agreement::read_reports(const std::vector<Rank>& pending, Reports& reports) {
  for (const Rank rank : pending) {
    const std::string name = key("here", rank);
    LOCKSTEP_ASSIGN(const bool here, has(name));
    if (!here) continue;
    LOCKSTEP_ASSIGN(const Buffer report, ask([&](const Deadline& until) { return store_.get(name, until); }));
    reports[rank] = parse_losses(text_of(report));
  }
  return {};
}

Status Agreement::withdraw(const std::string& why) {
  const Losses self = {{options_.rank, {.kind = Loss::Kind::kNamed, .why = why}}};
  return write(key("here", options_.rank), write_losses(self));
}

Result<std::vector<Rank>> Agreement::decide() {
  const std::string decision = cat(options_.prefix, "/decision");
  const Deadline deadline = clock_.in(options_.patience);
  Losses own = options_.losses();
  LOCKSTEP_TRY(write(key("here", options_.rank), write_losses(own)));
  Reports reports = {{options_.rank, own}};
  std::vector<Rank> pending;
  while (true) {
    pending = without(options_.members, reports);
    LOCKSTEP_TRY(read_reports(pending, reports));
    pending = without(pending, reports);
    if (can_decide(options_.members, reports) || deadline.expired()) break;
    LOCKSTEP_ASSIGN(const bool decided, has(decision));
    if (decided) break;
    std::vector<Rank> expected = without(pending, resolve(reports));
    if (expected.empty()) expected = pending;
    std::vector<std::string> keys;
    keys.reserve(expected.size());
    for (const Rank rank : expected) keys.push_back(key("here", rank));
    // One of them may be lost before it comes.
    const Status waited = store_.wait(keys, deadline.at_most(kSlice));
    if (!waited.ok() && waited.code() != Code::kTimeout) return waited;
    if (Losses now = options_.losses(); now != own) {
      own = reports[options_.rank] = std::move(now);
      LOCKSTEP_TRY(write(key("here", options_.rank), write_losses(own)));
    }
  }
  Losses out = resolve(reports);
  for (const Rank rank : pending) {
    if (!out.contains(rank)) out[rank] = {.why = cat("it did not come within ", options_.patience)};
  }
  const std::string proposal = write_decision(without(options_.members, out), out);
  LOCKSTEP_ASSIGN(const Buffer decided, propose(decision, proposal));
  return accept(decided);
}

Result<std::vector<Rank>> Agreement::accept(ByteView decision) {
  const std::string text(text_of(decision));
  const std::size_t end = text.find('\n');
  for (const std::string& word : base::split(std::string_view(text).substr(0, end), ' ')) {
    if (const auto rank = base::parse_integer<int>(word)) left_.emplace_back(*rank);
  }
  if (std::find(left_.begin(), left_.end(), options_.rank) != left_.end()) return left_;
  const Losses out = parse_losses(std::string_view(text).substr(std::min(end, text.size())));
  const auto own = out.find(options_.rank);
  return Status::disconnected(
      cat("rank ", options_.rank, " was left out of the world when it was shrunk to rank ",
          base::ranks_text(left_), ": ", own != out.end() ? own->second.why : "it came too late"),
      {.failure = Failure::kLeftOut, .rank = options_.rank, .peer = options_.rank, .op = "shrink"});
}

Status Agreement::look() {
  LOCKSTEP_ASSIGN(const bool decided, has(verdict_key()));
  return decided ? Status::disconnected("another rank could not do its part") : Status();
}

Result<Agreement::Verdict> Agreement::settle(const Status& done) {
  const std::string verdict = verdict_key();
  // Whoever fails may have taken all of its time before it did.
  const Deadline deadline = clock_.in(2 * options_.patience);
  LOCKSTEP_TRY(write(key("done", options_.rank), done.ok() ? kReady : kFailed));
  std::vector<std::string> keys;
  keys.reserve(left_.size());
  for (const Rank rank : left_) keys.push_back(key("done", rank));
  std::string_view proposal = done.ok() ? kGo : kAgain;
  while (proposal == kGo) {
    const Status waited = store_.wait(keys, deadline.at_most(kSlice));
    if (waited.ok()) {
      LOCKSTEP_ASSIGN(const std::vector<Buffer> said,
                      ask([&](const Deadline& until) { return store_.multi_get(keys, until); }));
      for (const Buffer& word : said) {
        if (text_of(word) != kReady) proposal = kAgain;
      }
      break;
    }
    if (waited.code() != Code::kTimeout) return waited;
    LOCKSTEP_ASSIGN(const bool decided, has(verdict));
    if (decided) break;
    const Losses losses = options_.losses();
    const bool lost = std::any_of(left_.begin(), left_.end(), [&](Rank r) { return losses.contains(r); });
    if (lost || deadline.expired()) proposal = kAgain;
  }
  LOCKSTEP_ASSIGN(const Buffer decided, propose(verdict, proposal));
  return text_of(decided) == kGo ? Verdict::kGo : Verdict::kAgain;
}

}  // namespace lockstep::backend
