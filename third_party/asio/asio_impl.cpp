// The one translation unit that holds Asio's code (ASIO_SEPARATE_COMPILATION).
#include <asio/impl/src.hpp>
