//! Progress bars for long work, on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(120);

/// A progress bar for work of a known size.
pub fn bar(total: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}  {eta}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// A spinner for work of an unknown size.
pub fn spinner(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(what);
    bar.enable_steady_tick(TICK);
    bar
}
