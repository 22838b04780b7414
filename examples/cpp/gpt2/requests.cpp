// SPDX-License-Identifier: MIT
#include "requests.h"

#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace gpt2 {
namespace {

using nlohmann::json;

constexpr std::size_t kMostStops = 16, kLongestStop = 256;

[[noreturn]] void refuse(const std::string& field, const std::string& what) {
  throw Refusal(400, field + ": " + what, field);
}

// The fields of an object, each of which is taken once.
class Fields {
 public:
  Fields(json object, std::string prefix) : object_(std::move(object)), prefix_(std::move(prefix)) {
    if (!object_.is_object()) throw Refusal(400, prefix_ + "Input should be an object");
  }

  // Null where it is not given.
  json take(const std::string& name) {
    const auto found = object_.find(name);
    if (found == object_.end()) return nullptr;
    json value = std::move(*found);
    object_.erase(found);
    return value;
  }

  // `fits` takes a number; `what` says what one is.
  template <class T, class Fits>
  std::optional<T> number(const std::string& name, const std::string& what, Fits fits) {
    const json value = take(name);
    if (value.is_null()) return std::nullopt;
    const bool is_number = std::is_integral_v<T> ? is_whole(value) : value.is_number();
    if (!is_number || !fits(value.get<T>())) refuse(prefix_ + name, "Input should be " + what);
    return value.get<T>();
  }

  bool flag(const std::string& name) {
    const json value = take(name);
    if (!value.is_null() && !value.is_boolean()) refuse(prefix_ + name, "Input should be a bool");
    return value.is_boolean() && value.get<bool>();
  }

  std::optional<std::string> text(const std::string& name) {
    const json value = take(name);
    if (value.is_null()) return std::nullopt;
    if (!value.is_string()) refuse(prefix_ + name, "Input should be a valid string");
    return value.get<std::string>();
  }

  // Refuses what nobody has taken.
  void finish() const {
    for (const auto& [name, value] : object_.items()) {
      if (!value.is_null()) refuse(prefix_ + name, "Extra inputs are not permitted");
    }
  }

 private:
  // Whether it is an integer of 64 bits with a sign.
  static bool is_whole(const json& value) {
    return value.is_number_integer() &&
           !(value.is_number_unsigned() &&
             value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max());
  }

  json object_;
  std::string prefix_;
};

tfk::SamplingParameters sampling_of(Fields& fields) {
  tfk::SamplingParameters sampling;
  const auto set = [&](float& parameter, const std::string& name, const std::string& what,
                       auto fits) {
    if (const auto given = fields.number<double>(name, what, fits); given.has_value()) {
      parameter = static_cast<float>(*given);
    }
  };
  set(sampling.temperature, "temperature", "a number from 0 to 2",
      [](double x) { return x >= 0 && x <= 2; });
  set(sampling.top_p, "top_p", "a number greater than 0 and at most 1",
      [](double x) { return x > 0 && x <= 1; });
  set(sampling.min_p, "min_p", "a number from 0 to 1", [](double x) { return x >= 0 && x <= 1; });
  set(sampling.top_k, "top_k", "a whole number greater than or equal to 1 and below 2^31",
      [](double x) { return x >= 1 && x < 0x1p31 && x == std::floor(x); });
  return sampling;
}

std::vector<std::string> stops_of(json value) {
  if (value.is_null()) return {};
  if (value.is_string()) value = json::array({value});
  const std::string what = "Input should be a string, or at most 16 of them, of 1 to 256 bytes";
  if (!value.is_array() || value.size() > kMostStops) refuse("stop", what);
  std::vector<std::string> stops;
  for (const json& each : value) {
    if (!each.is_string()) refuse("stop", what);
    stops.push_back(each.get<std::string>());
    if (stops.back().empty() || stops.back().size() > kLongestStop) refuse("stop", what);
  }
  return stops;
}

std::variant<std::string, std::vector<std::int32_t>> prompt_of(const json& value) {
  if (value.is_null()) refuse("prompt", "Field required");
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) refuse("prompt", "Input should be a valid string or a list of tokens");
  std::vector<std::int32_t> tokens;
  for (const json& each : value) {
    // A number without a sign is what JSON's numbers from 0 on are read as.
    if (!each.is_number_unsigned() ||
        each.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
      refuse("prompt", "Input should be numbers greater than or equal to 0");
    }
    tokens.push_back(each.get<std::int32_t>());
  }
  return tokens;
}

}  // namespace

json Refusal::body() const {
  const std::map<int, std::string> kinds = {
      {401, "authentication_error"}, {403, "permission_error"}, {429, "rate_limit_error"}};
  const auto kind = kinds.find(status_);
  const std::string usual = status_ >= 500 ? "server_error" : "invalid_request_error";
  const auto or_null = [](const std::string& text) { return text.empty() ? json() : json(text); };
  return {{"error",
           {{"message", message_},
            {"type", kind == kinds.end() ? usual : kind->second},
            {"param", or_null(param_)},
            {"code", or_null(code_)}}}};
}

Asked read_asked(const std::string& body) {
  json content = json::parse(body, nullptr, false);
  if (content.is_discarded()) throw Refusal(400, "Invalid JSON", "", "json_invalid");
  Fields fields(std::move(content), "");
  Asked asked;
  asked.prompt = prompt_of(fields.take("prompt"));
  asked.model = fields.text("model");
  asked.max_tokens =
      fields.number<std::int64_t>("max_tokens", "a whole number greater than or equal to 1",
                                  [](std::int64_t x) { return x >= 1; });
  asked.sampling = sampling_of(fields);
  asked.seed = fields.number<std::int64_t>("seed", "a whole number of 64 bits",
                                           [](std::int64_t) { return true; });
  asked.stop = stops_of(fields.take("stop"));
  asked.stream = fields.flag("stream");
  if (json options = fields.take("stream_options"); !options.is_null()) {
    Fields inner(std::move(options), "stream_options.");
    asked.include_usage = inner.flag("include_usage");
    inner.finish();
  }
  fields.number<std::int64_t>("n", "1", [](std::int64_t x) { return x == 1; });
  fields.text("user");  // has no effect
  fields.finish();
  return asked;
}

std::string text_of(const json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace gpt2
