// SPDX-License-Identifier: MIT
#include "requests.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <utility>

namespace gpt2 {
namespace {

using nlohmann::json;

constexpr std::size_t kMostStops = 16, kLongestStop = 256;

[[noreturn]] void refuse(const std::string& field, const std::string& what) {
  throw Refusal(400, field + ": " + what, field);
}

[[noreturn]] void refuse(const std::string& field, const std::string& wanted,
                         const std::string& got) {
  refuse(field, "Input should be " + wanted + ", got " + got);
}

// Texts and lists are not repeated, because they may be long.
std::string shown(const json& value) {
  return value.is_number() || value.is_boolean() ? value.dump() : value.type_name();
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

  // `fits` takes a number; `wanted` says what one is.
  template <class T, class Fits>
  std::optional<T> number(const std::string& name, const std::string& wanted, Fits fits) {
    const json value = take(name);
    if (value.is_null()) return std::nullopt;
    const bool is_number = std::is_integral_v<T> ? is_whole(value) : value.is_number();
    if (!is_number || !fits(value.get<T>())) refuse(prefix_ + name, wanted, shown(value));
    return value.get<T>();
  }

  bool flag(const std::string& name) {
    const json value = take(name);
    if (!value.is_null() && !value.is_boolean()) refuse(prefix_ + name, "a bool", shown(value));
    return value.is_boolean() && value.get<bool>();
  }

  std::optional<std::string> text(const std::string& name) {
    const json value = take(name);
    if (value.is_null()) return std::nullopt;
    if (!value.is_string()) refuse(prefix_ + name, "a valid string", shown(value));
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

tfk::SamplingParameters parameters_of(Fields& fields) {
  tfk::SamplingParameters parameters;
  for (const SamplingField& field : kSamplingFields) {
    const auto given = fields.number<double>(field.name, field.wanted, field.fits);
    if (given.has_value()) parameters.*field.parameter = static_cast<float>(*given);
  }
  return parameters;
}

// Throws where a text is no token as JSON writes it.
std::int32_t token_of(const std::string& text) {
  std::int32_t token = -1;
  std::from_chars(text.data(), text.data() + text.size(), token);
  if (token < 0 || std::to_string(token) != text) {
    refuse("logit_bias", "Input should have numbers of tokens as names");
  }
  return token;
}

std::vector<Bias> bias_of(const json& value) {
  if (value.is_null()) return {};
  const std::string what = "an object of tokens and numbers from -100 to 100";
  if (!value.is_object()) refuse("logit_bias", what, shown(value));
  std::vector<Bias> bias;
  for (const auto& [name, by] : value.items()) {
    const std::int32_t token = token_of(name);
    if (!by.is_number() || std::abs(by.get<double>()) > 100) refuse("logit_bias", what, shown(by));
    bias.push_back({token, by.get<float>()});
  }
  return bias;
}

std::vector<std::string> stops_of(json value) {
  if (value.is_null()) return {};
  if (value.is_string()) value = json::array({value});
  const std::string what = "a string, or at most 16 of them, of 1 to 256 bytes";
  if (!value.is_array()) refuse("stop", what, shown(value));
  if (value.size() > kMostStops) refuse("stop", what, std::to_string(value.size()) + " of them");
  std::vector<std::string> stops;
  for (const json& each : value) {
    if (!each.is_string()) refuse("stop", what, shown(each));
    stops.push_back(each.get<std::string>());
    const std::size_t size = stops.back().size();
    if (size < 1 || size > kLongestStop) refuse("stop", what, std::to_string(size) + " bytes");
  }
  return stops;
}

std::variant<std::string, std::vector<std::int32_t>> prompt_of(const json& value) {
  if (value.is_null()) refuse("prompt", "Field required");
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) refuse("prompt", "a valid string or a list of tokens", shown(value));
  std::vector<std::int32_t> tokens;
  for (const json& each : value) {
    // A number without a sign is what JSON's numbers from 0 on are read as.
    if (!each.is_number_unsigned() ||
        each.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
      refuse("prompt", "numbers greater than or equal to 0", shown(each));
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
  asked.sampling.parameters = parameters_of(fields);
  asked.sampling.bias = bias_of(fields.take("logit_bias"));
  asked.sampling.likeliest = fields.number<std::int64_t>(
      "logprobs", "a whole number from 0 to 5", [](std::int64_t x) { return x >= 0 && x <= 5; });
  asked.sampling.seed = fields
                            .number<std::int64_t>("seed", "a whole number of 64 bits",
                                                  [](std::int64_t) { return true; })
                            .value_or(std::random_device()());
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
