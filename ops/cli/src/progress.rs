//! Progress of long work, on a terminal only: what is piped or scheduled is not decorated.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(120);

/// Of work whose end is known.
pub fn bar(total: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}  {eta}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// Of work whose end nobody knows.
pub fn spinner(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(what);
    bar.enable_steady_tick(TICK);
    bar
}
