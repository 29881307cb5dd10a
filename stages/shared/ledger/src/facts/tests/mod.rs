//! What facts come to, in any order, and how fast.

mod measure;
mod permutations;
