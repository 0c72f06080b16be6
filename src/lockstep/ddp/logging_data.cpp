#include "lockstep/ddp/logging_data.h"

#include <nlohmann/json.hpp>

namespace lockstep::ddp {

std::string LoggingData::json() const {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  auto text = texts.begin();
  auto number = numbers.begin();
  while (text != texts.end() || number != numbers.end()) {
    const bool text_is_next = number == numbers.end() || (text != texts.end() && text->first < number->first);
    if (text_is_next) {
      all[text->first] = text->second;
      ++text;
    } else {
      all[number->first] = number->second;
      ++number;
    }
  }
  return all.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lockstep::ddp
