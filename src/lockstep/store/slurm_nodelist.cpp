#include "lockstep/store/slurm_nodelist.h"

#include <cctype>
#include <cstdint>
#include <optional>

#include "lockstep/base/text.h"

namespace lockstep::store {
namespace {

using base::quoted;

constexpr std::size_t kMaxNameSize = 255;
constexpr std::size_t kMaxDigits = 9;
constexpr int kMaxBrackets = 8;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' || c == '_';
}

std::string padded(std::uint32_t number, std::size_t width) {
  std::string digits = cat(number);
  return digits.size() < width ? std::string(width - digits.size(), '0') + digits : digits;
}

// One list from left to right. Each function takes what it parses off the front of `rest_`.
class NodelistParser {
 public:
  explicit NodelistParser(std::string_view list) : list_(list), rest_(list) {}

  Result<std::vector<std::string>> parse() {
    std::vector<std::string> hosts;
    while (true) {
      LOCKSTEP_ASSIGN(std::vector<std::string> names, item());
      if (names.size() > kMaxSlurmHosts - hosts.size()) return too_many();
      std::move(names.begin(), names.end(), std::back_inserter(hosts));
      if (rest_.empty()) return hosts;
      rest_.remove_prefix(1);  // item() stops at the end or at a comma
    }
  }

 private:
  // Every name of one item.
  Result<std::vector<std::string>> item() {
    std::vector<std::string> names = {""};
    bool any = false;
    int brackets_seen = 0;
    while (!rest_.empty() && rest_.front() != ',') {
      std::vector<std::string> endings;
      if (rest_.front() == '[') {
        if (++brackets_seen > kMaxBrackets)
          return error(cat("a host name has more than ", kMaxBrackets, " brackets"));
        LOCKSTEP_ASSIGN(endings, brackets());
      } else {
        LOCKSTEP_ASSIGN(std::string part, text());
        endings.push_back(std::move(part));
      }
      LOCKSTEP_ASSIGN(names, combine(names, endings));
      any = true;
    }
    if (!any) return error("a host name is missing");
    return names;
  }

  Result<std::string> text() {
    std::size_t size = 0;
    while (size < rest_.size() && is_name(rest_[size])) ++size;
    if (size == 0) return error("a host name cannot have this character");
    return std::string(take(size));
  }

  Result<std::vector<std::string>> brackets() {
    std::vector<std::string> numbers;
    do {
      rest_.remove_prefix(1);  // "[" the first time, then ","
      LOCKSTEP_TRY(range(numbers));
    } while (!rest_.empty() && rest_.front() == ',');
    if (rest_.empty() || rest_.front() != ']') return error("expected , or ] after a number");
    rest_.remove_prefix(1);
    return numbers;
  }

  Status range(std::vector<std::string>& numbers) {
    LOCKSTEP_ASSIGN(const std::string_view first_digits, digits());
    std::string_view last_digits = first_digits;
    if (!rest_.empty() && rest_.front() == '-') {
      rest_.remove_prefix(1);
      LOCKSTEP_ASSIGN(last_digits, digits());
    }
    const std::uint32_t first = *base::parse_integer<std::uint32_t>(first_digits);
    const std::uint32_t last = *base::parse_integer<std::uint32_t>(last_digits);
    if (last < first) return error(cat("the range ", first_digits, "-", last_digits, " runs backwards"));
    if (last - first >= kMaxSlurmHosts - numbers.size()) return too_many();
    for (std::uint32_t number = first; number <= last; ++number)
      numbers.push_back(padded(number, first_digits.size()));
    return {};
  }

  Result<std::string_view> digits() {
    std::size_t size = 0;
    while (size < rest_.size() && is_digit(rest_[size])) ++size;
    if (size == 0) return error("expected a number");
    if (size > kMaxDigits) return error(cat("a number has more than ", kMaxDigits, " digits"));
    return take(size);
  }

  Result<std::vector<std::string>> combine(const std::vector<std::string>& starts,
                                           const std::vector<std::string>& endings) {
    if (starts.size() > kMaxSlurmHosts / endings.size()) return too_many();
    std::vector<std::string> out;
    out.reserve(starts.size() * endings.size());
    for (const std::string& start : starts) {
      for (const std::string& ending : endings) {
        if (start.size() + ending.size() > kMaxNameSize)
          return error(cat("a host name is longer than ", kMaxNameSize, " characters"));
        out.push_back(start + ending);
      }
    }
    return out;
  }

  std::string_view take(std::size_t size) {
    const std::string_view out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return out;
  }

  Status error(std::string_view what) const {
    return Status::invalid(cat("The Slurm node list ", quoted(list_), " does not parse at character ",
                               list_.size() - rest_.size() + 1, ": ", what, "."));
  }
  Status too_many() const {
    return Status::invalid(
        cat("The Slurm node list ", quoted(list_), " names more than ", kMaxSlurmHosts, " hosts."),
        {.failure = Failure::kLimitExceeded});
  }

  std::string_view list_;
  std::string_view rest_;
};

struct Repeated {
  int count;
  std::size_t times;
};

// "4" or "4(x2)".
std::optional<Repeated> parse_repeated(std::string_view text) {
  std::size_t times = 1;
  if (const std::size_t open = text.find("(x"); open != std::string_view::npos) {
    if (text.back() != ')') return std::nullopt;
    const auto parsed = base::parse_integer<std::size_t>(text.substr(open + 2, text.size() - open - 3));
    if (!parsed || *parsed == 0) return std::nullopt;
    times = *parsed;
    text = text.substr(0, open);
  }
  const auto count = base::parse_integer<int>(text);
  if (!count || *count < 1) return std::nullopt;
  return Repeated{*count, times};
}

}  // namespace

Result<std::vector<std::string>> expand_nodelist(std::string_view list) {
  return NodelistParser(list).parse();
}

Result<std::vector<int>> expand_tasks_per_node(std::string_view list) {
  std::vector<int> out;
  for (const std::string& part : base::split(list, ',')) {
    const auto repeated = parse_repeated(part);
    if (!repeated || repeated->times > kMaxSlurmHosts - out.size()) {
      return Status::invalid(cat("The Slurm task counts ", quoted(list), " do not parse at ", quoted(part),
                                 ": expected counts such as 4(x2),3 for at most ", kMaxSlurmHosts,
                                 " nodes."));
    }
    out.insert(out.end(), repeated->times, repeated->count);
  }
  return out;
}

}  // namespace lockstep::store
