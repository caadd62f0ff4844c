// SPDX-License-Identifier: Apache-2.0
//
// Text of one request as it streams: pieces from the detokenizer in, text that can be shown out. Text that may be the
// beginning of a stop string is held back until it is decided. Knows nothing of tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace coluber {

class OutputText {
 public:
  OutputText(std::vector<std::string> stop, bool include_stop_str);

  // New text that may be shown. Once a stop string has been met, `stopped` is true and nothing more comes.
  std::string push(std::string_view piece);
  // The rest, at the end of the request.
  std::string finish();
  bool stopped() const noexcept { return stopped_; }

 private:
  std::vector<std::string> stop_;
  bool include_stop_str_;
  std::string held_;  // text that has not been shown
  bool stopped_ = false;
};

}  // namespace coluber
