#include "lockstep/launch/agent_message.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <nlohmann/json.hpp>

#include "lockstep/base/text.h"
#include "lockstep/launch/options.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;
using Kind = AgentMessage::Kind;

struct KindName {
  Kind kind;
  std::string_view name;
};
constexpr auto kKinds = std::to_array<KindName>({{Kind::kReady, "ready"},
                                                 {Kind::kRound, "round"},
                                                 {Kind::kFailed, "failed"},
                                                 {Kind::kDone, "done"},
                                                 {Kind::kStop, "stop"},
                                                 {Kind::kLost, "lost"}});

std::string_view kind_name(Kind kind) {
  for (const KindName& entry : kKinds) {
    if (entry.kind == kind) return entry.name;
  }
  return "";
}

std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

json to_json(const NodePlan& node) {
  return {{"host", node.host}, {"nproc", node.nproc}, {"role", node.role}};
}

Status does_not_parse(std::string_view what) {
  return Status::invalid(
      cat("a message of another agent does not parse (", what, "): is it of another version?"));
}

Result<NodePlan> node_from(const json& in) {
  NodePlan node{.host = in.at("host").get<std::string>(),
                .nproc = in.at("nproc").get<int>(),
                .role = in.at("role").get<std::string>()};
  if (node.nproc < 1 || node.nproc > kMaxLocalRanks) return does_not_parse(cat("nproc ", node.nproc));
  return node;
}

json to_json(const base::Endpoint& endpoint) { return {{"host", endpoint.host}, {"port", endpoint.port}}; }

base::Endpoint endpoint_from(const json& in) {
  return {.host = in.at("host").get<std::string>(), .port = in.at("port").get<std::uint16_t>()};
}

json to_json(const JobSetting& job) {
  return {{"job_id", job.job_id},
          {"run_id", job.run_id},
          {"epoch", job.epoch},
          {"max_restarts", job.max_restarts},
          {"master", to_json(job.master)},
          {"store", to_json(job.store)},
          {"insecure", job.insecure}};
}

JobSetting job_from(const json& in) {
  return {.job_id = in.at("job_id").get<std::string>(),
          .run_id = in.at("run_id").get<std::string>(),
          .epoch = in.at("epoch").get<std::uint64_t>(),
          .max_restarts = in.at("max_restarts").get<int>(),
          .master = endpoint_from(in.at("master")),
          .store = endpoint_from(in.at("store")),
          .insecure = in.at("insecure").get<bool>()};
}

// What each kind has beyond the common fields.
void add_fields(const AgentMessage& message, json& out) {
  switch (message.kind) {
    case Kind::kReady:
      out["plan"] = to_json(message.plan);
      break;
    case Kind::kRound:
      out["job"] = to_json(message.job);
      out["nodes"] = json::array();
      for (const NodePlan& node : message.nodes) out["nodes"].push_back(to_json(node));
      break;
    case Kind::kFailed:
      out["report"] = report_to_json(message.report);
      break;
    case Kind::kDone:
      break;
    case Kind::kStop:
      out["signal"] = message.signal;
      out["host"] = message.host;
      break;
    case Kind::kLost:
      out["text"] = message.text;
      break;
  }
}

Status read_fields(const json& in, AgentMessage& message) {
  switch (message.kind) {
    case Kind::kReady: {
      LOCKSTEP_ASSIGN(message.plan, node_from(in.at("plan")));
      break;
    }
    case Kind::kRound:
      message.job = job_from(in.at("job"));
      if (in.at("nodes").size() > kMaxNodes) return does_not_parse("too many nodes");
      for (const json& entry : in.at("nodes")) {
        LOCKSTEP_ASSIGN(NodePlan node, node_from(entry));
        message.nodes.push_back(std::move(node));
      }
      break;
    case Kind::kFailed: {
      LOCKSTEP_ASSIGN(message.report, report_from_json(in.at("report").get<std::string>()));
      break;
    }
    case Kind::kDone:
      break;
    case Kind::kStop:
      message.signal = in.at("signal").get<int>();
      if (message.signal < 1 || message.signal >= NSIG) return does_not_parse(cat("signal ", message.signal));
      message.host = in.at("host").get<std::string>();
      break;
    case Kind::kLost:
      message.text = in.at("text").get<std::string>();
      break;
  }
  return {};
}

}  // namespace

std::string message_to_json(const AgentMessage& message) {
  json out = {{"kind", kind_name(message.kind)}, {"epoch", message.epoch}, {"node", message.node}};
  add_fields(message, out);
  return dump(out);
}

Result<AgentMessage> message_from_json(std::string_view text) {
  const json in = json::parse(text, nullptr, false);
  if (!in.is_object()) return does_not_parse("no JSON object");
  try {
    AgentMessage message;
    const auto name = in.at("kind").get<std::string>();
    const auto* const found = std::find_if(kKinds.begin(), kKinds.end(),
                                           [&name](const KindName& entry) { return entry.name == name; });
    if (found == kKinds.end()) return does_not_parse("unknown kind");
    message.kind = found->kind;
    message.epoch = in.at("epoch").get<std::uint64_t>();
    message.node = in.at("node").get<int>();
    LOCKSTEP_TRY(read_fields(in, message));
    return message;
  } catch (const json::exception& error) {
    return does_not_parse(error.what());
  }
}

std::string card_to_json(const JobCard& card) {
  return dump({{"nnodes", card.nnodes},
               {"by_arrival", card.by_arrival},
               {"job_id", card.job_id},
               {"run_id", card.run_id},
               {"max_restarts", card.max_restarts},
               {"host", card.host}});
}

Result<JobCard> card_from_json(std::string_view text) {
  const json in = json::parse(text, nullptr, false);
  if (!in.is_object()) return does_not_parse("no JSON object");
  try {
    return JobCard{.nnodes = in.at("nnodes").get<int>(),
                   .by_arrival = in.at("by_arrival").get<bool>(),
                   .job_id = in.at("job_id").get<std::string>(),
                   .run_id = in.at("run_id").get<std::string>(),
                   .max_restarts = in.at("max_restarts").get<int>(),
                   .host = in.at("host").get<std::string>()};
  } catch (const json::exception& error) {
    return does_not_parse(error.what());
  }
}

}  // namespace lockstep::launch
