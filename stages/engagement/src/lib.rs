//! engagement
