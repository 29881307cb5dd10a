//! The rendering stage: cleared batches in, rendered batches out.
//!
//! [`template`] is its pure part: what a template may contain, how it is compiled and rendered. The HTTP API uses it to
//! check templates when they are saved.

pub mod template;
