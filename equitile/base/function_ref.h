// A reference to something callable, for calls that do not outlive their argument: two words, no
// allocation.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace equitile {

template <typename Signature>
class FunctionRef;

// Views the callable: it must live as long as the reference is called. Empty when
// default-constructed.
template <typename Result, typename... Args>
class FunctionRef<Result(Args...)> {
 public:
  FunctionRef() = default;
  FunctionRef(std::nullptr_t) {}

  template <typename Callable>
    requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef> &&
             std::is_invocable_r_v<Result, Callable&, Args...> &&
             !std::is_function_v<std::remove_reference_t<Callable>>)
  FunctionRef(Callable&& callable)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Args... args) -> Result {
          return (*static_cast<std::remove_reference_t<Callable>*>(object))(
              std::forward<Args>(args)...);
        }) {}

  Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }
  explicit operator bool() const { return call_ != nullptr; }

 private:
  void* object_ = nullptr;
  Result (*call_)(void*, Args...) = nullptr;
};

}  // namespace equitile
