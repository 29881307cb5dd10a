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
