//! `postrider reader`: the child process that reads strangers' bytes. Started by the ingress and the engagement stage; not by people.

use runtime::Job;

/// `postrider reader`
#[derive(Debug, clap::Args)]
pub struct ReaderArgs {
    /// Memory one reading may take, in MB.
    #[arg(long)]
    memory_mb: u64,
}

/// Every kind of reading there is.
fn jobs() -> Vec<Job> {
    [engagement::READER_JOBS, ingress::READER_JOBS].concat()
}

/// Serves until the parent closes standard input.
pub fn run(args: &ReaderArgs) -> std::io::Result<std::convert::Infallible> {
    runtime::reader::serve(jobs(), args.memory_mb.saturating_mul(1024 * 1024))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_of_reading_has_a_name_of_its_own() {
        let kinds: BTreeSet<&str> = jobs().iter().map(|job| job.kind).collect();
        assert_eq!(kinds.len(), jobs().len());
        assert!(kinds.iter().all(|kind| (1..=64).contains(&kind.len())));
    }
}
