//! `postrider sink`: the mail sink as a process of its own.
