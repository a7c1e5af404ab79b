#include "equitile/comm/communicator.h"

#include <exception>

namespace equitile {

void AbortOnError(Communicator& comm, FunctionRef<void()> work) {
  try {
    work();
  } catch (const CommError& error) {
    comm.Abort(error.what(), error.failure().kind);  // news of another's failure is no news
    throw;
  } catch (const InputError& error) {
    comm.Abort(error.what(), FailureKind::kUnusable);
    throw;
  } catch (const std::exception& error) {
    comm.Abort(error.what());
    throw;
  } catch (...) {
    comm.Abort("an exception of unknown type");
    throw;
  }
}

}  // namespace equitile
