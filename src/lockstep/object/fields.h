// LOCKSTEP_OBJECT(Type, field...): the fields of a struct, by name, so that it can be sent (codec.h).
//
// It stands beside the struct, in its namespace and after it, with at most 256 public fields.
#pragma once

#include <string_view>
#include <tuple>

namespace lockstep::object {

template <typename Struct, typename T>
struct Field {
  using Value = T;
  std::string_view name;
  T Struct::*member;
};
template <typename Struct, typename T>
Field(const char*, T Struct::*) -> Field<Struct, T>;

template <typename... Each>
struct Fields {
  std::string_view name;  // of the struct
  std::tuple<Each...> fields;
};
template <typename... Each>
constexpr Fields<Each...> make_fields(std::string_view name, Each... fields) {
  return {name, {fields...}};
}

// There is a LOCKSTEP_OBJECT for it.
template <typename T>
concept Declared = requires(const T* type) { lockstep_fields(type); };

template <Declared T>
constexpr auto fields_of() {
  return lockstep_fields(static_cast<const T*>(nullptr));
}

}  // namespace lockstep::object

#define LOCKSTEP_OBJECT(Type, ...)                                                                    \
  [[maybe_unused]] constexpr auto lockstep_fields(const Type*) {                                      \
    return ::lockstep::object::make_fields(#Type __VA_OPT__(LOCKSTEP_EACH_FIELD(Type, __VA_ARGS__))); \
  }

// For each field of the list, ", Field{...}". The preprocessor has no loops: a step leaves the next one
// behind unexpanded, and LOCKSTEP_REPEAT reads its text again 256 times.
#define LOCKSTEP_EACH_FIELD(Type, ...) LOCKSTEP_REPEAT(LOCKSTEP_FIELD_STEP(Type, __VA_ARGS__))
#define LOCKSTEP_FIELD_STEP(Type, field, ...) \
  , ::lockstep::object::Field{                \
        #field, &Type::field} __VA_OPT__(LOCKSTEP_NEXT_FIELD_STEP LOCKSTEP_PARENTHESES(Type, __VA_ARGS__))
#define LOCKSTEP_NEXT_FIELD_STEP() LOCKSTEP_FIELD_STEP
#define LOCKSTEP_PARENTHESES ()
#define LOCKSTEP_REPEAT(...) \
  LOCKSTEP_REPEAT_64(LOCKSTEP_REPEAT_64(LOCKSTEP_REPEAT_64(LOCKSTEP_REPEAT_64(__VA_ARGS__))))
#define LOCKSTEP_REPEAT_64(...) \
  LOCKSTEP_REPEAT_16(LOCKSTEP_REPEAT_16(LOCKSTEP_REPEAT_16(LOCKSTEP_REPEAT_16(__VA_ARGS__))))
#define LOCKSTEP_REPEAT_16(...) \
  LOCKSTEP_REPEAT_4(LOCKSTEP_REPEAT_4(LOCKSTEP_REPEAT_4(LOCKSTEP_REPEAT_4(__VA_ARGS__))))
#define LOCKSTEP_REPEAT_4(...) \
  LOCKSTEP_REPEAT_1(LOCKSTEP_REPEAT_1(LOCKSTEP_REPEAT_1(LOCKSTEP_REPEAT_1(__VA_ARGS__))))
#define LOCKSTEP_REPEAT_1(...) __VA_ARGS__
