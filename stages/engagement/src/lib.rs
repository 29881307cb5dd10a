//! The engagement stage: what recipients do with a mail, recorded once however often and in whatever order it is told.

mod opt_out;

pub use opt_out::{OptOut, opt_out};
