//! What facts come to, in any order, how many are kept, and how fast.

mod bounds;
mod measure;
mod permutations;
