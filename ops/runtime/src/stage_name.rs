//! The names of the stages: of processes, metrics, subjects and pause switches.

schemas::named_enum! {
    /// The stages.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
    pub enum StageName {
        /// Finds recipients, cuts and dispatches batches.
        Audience = "audience",
        /// Withholds recipients that must not be mailed.
        Compliance = "compliance",
        /// Renders messages from templates and contacts.
        Rendering = "rendering",
        /// Fences, sends, records.
        Delivery = "delivery",
        /// Records opens, clicks, unsubscribes, bounces, complaints, replies.
        Engagement = "engagement",
        /// Credits outcomes to mails.
        Attribution = "attribution",
        /// Sends events to products.
        Webhooks = "webhooks",
        /// Takes contacts through sequences.
        Sequencing = "sequencing",
    }
}

/// The parts that a process may run: the stages and the ingress.
pub fn process_parts() -> impl Iterator<Item = &'static str> {
    StageName::NAMES.iter().copied().chain(["ingress"])
}

/// True if a process of this name (`all`, `ingress`, stages joined by `+`) runs this part.
#[must_use]
pub fn runs(process: &str, part: &str) -> bool {
    process == "all" && process_parts().any(|known| known == part) || process.split('+').any(|named| named == part)
}
