//! Every metric's name and meaning, in one list. Labels are bounded sets: never a tenant, an address, an id.
#![allow(clippy::disallowed_macros, reason = "this is the list they are to be emitted through")]

use metrics::{SharedString, Unit};

macro_rules! metric_set {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[doc = $doc])+ $variant,)+ }

        impl $name {
            /// Every member.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// The name as exported.
            #[must_use]
            pub fn name(self) -> &'static str { match self { $(Self::$variant => $text,)+ } }
            /// What it means.
            #[must_use]
            pub fn help(self) -> &'static str { match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ } }
        }
    };
}

metric_set! {
    /// Things counted since the process started.
    Counter {
        /// Messages a stage took from its stream (labels: stage, lane).
        StageReceivedTotal = "mail_stage_received_total",
        /// Messages a stage finished with (labels: stage, lane, outcome = done, retried, dead_lettered).
        StageHandledTotal = "mail_stage_handled_total",
        /// Messages a stage published and saw stored (labels: stage, lane).
        StagePublishedTotal = "mail_stage_published_total",
        /// Messages that came again (labels: stage, lane).
        StageRedeliveredTotal = "mail_stage_redelivered_total",
        /// Messages set aside for a person (labels: stage, lane, reason).
        StageDeadLetteredTotal = "mail_stage_dead_lettered_total",
        /// Pieces of work a sweep found and put right (labels: stage, sweep).
        SweepFoundTotal = "mail_sweep_found_total",
        /// Sweeps that failed; they run again (labels: stage, sweep).
        SweepFailedTotal = "mail_sweep_failed_total",
        /// Recipients withheld on purpose (labels: stage, reason).
        SendsWithheldTotal = "mail_sends_withheld_total",
        /// Sends by the state they reached (labels: lane, state).
        SendsTotal = "mail_sends_total",
        /// Answers of receiving servers (labels: lane, class).
        SmtpAnswersTotal = "mail_smtp_answers_total",
        /// SMTP connections opened (label: outcome).
        SmtpConnectionsTotal = "mail_smtp_connections_total",
        /// HTTP requests answered (labels: route, method, status).
        HttpRequestsTotal = "mail_http_requests_total",
        /// Requests of providers that tell what became of mail (labels: provider, outcome = stored, repeated, confirmed, refused, throttled).
        HookRequestsTotal = "mail_hook_requests_total",
        /// What providers told (labels: provider, outcome = recorded, parked, joined, dropped, ignored, malformed, failed).
        InboundFactsTotal = "mail_inbound_facts_total",
        /// Mails that came back, and what was made of them (label: outcome = bounced, delivered, complained, unsubscribed, replied,
        /// auto_replied, delayed, relayed, receipt, auth_failure, no_report, no_evidence, unreadable, given_up; not taken: bad_address,
        /// unknown_send, too_large, bare_line_end).
        InboundMailsTotal = "mail_inbound_mails_total",
        /// Opens, clicks and unsubscribes taken in (labels: kind, outcome).
        SignalsTotal = "mail_signals_total",
        /// Events made of facts (label: type).
        EventsTotal = "mail_events_total",
        /// Attempts to deliver to webhook subscriptions (label: outcome = delivered, failed, dead, disabled).
        WebhookAttemptsTotal = "mail_webhook_attempts_total",
        /// Why attempts failed (label: reason, a code of ours or `answered_<status>`).
        WebhookFailuresTotal = "mail_webhook_failures_total",
        /// Credits of outcomes that were set or restated (label: rule = human_click, delivered, none).
        OutcomesCreditedTotal = "mail_outcomes_credited_total",
        /// Steps of sequences (labels: step_type, outcome = done, unchanged, withheld, retried, failed).
        SequenceStepsTotal = "mail_sequence_steps_total",
        /// Enrollments that ended (label: reason = completed or the exit reason).
        EnrollmentsEndedTotal = "mail_enrollments_ended_total",
        /// Calls of the assistant endpoint's tools (labels: tool, outcome).
        AssistantCallsTotal = "mail_assistant_calls_total",
        /// Requests to the assistant endpoint that were not let in (label: reason).
        AssistantRefusalsTotal = "mail_assistant_refusals_total",
    }
}

metric_set! {
    /// Levels.
    Gauge {
        /// Messages a stage is working on (labels: stage, lane).
        StageInFlight = "mail_stage_in_flight",
        /// Messages waiting for a stage (labels: stage, lane).
        StagePending = "mail_stage_pending",
        /// Messages handed to a stage and not acknowledged (labels: stage, lane).
        StageAckPending = "mail_stage_ack_pending",
        /// Age of the oldest message waiting for a stage, in seconds (labels: stage, lane).
        StageOldestMessageAgeSeconds = "mail_stage_oldest_message_age_seconds",
        /// Open SMTP connections (label: state = idle, busy).
        SmtpConnectionsOpen = "mail_smtp_connections_open",
        /// Postgres connections of this process (label: state = idle, busy).
        PoolConnections = "mail_pool_connections",
        /// Webhook deliveries being tried by this process.
        WebhooksInFlight = "mail_webhooks_in_flight",
        /// Webhook subscriptions this process delivers to.
        WebhooksHeld = "mail_webhooks_held",
        /// Webhook deliveries that are due to active subscriptions, over all processes (counted to 10,000).
        WebhooksDue = "mail_webhooks_due",
        /// How long the most overdue webhook delivery waits, in seconds.
        WebhooksOldestDueSeconds = "mail_webhooks_oldest_due_seconds",
        /// Age of the oldest fact that is not made into events yet, in seconds.
        OutboxOldestSeconds = "mail_outbox_oldest_seconds",
        /// Always 1; the labels say what runs (labels: version, processes).
        BuildInfo = "mail_build_info",
    }
}

metric_set! {
    /// Distributions, in seconds.
    Histogram {
        /// Time a stage took over one message (labels: stage, lane).
        StageProcessingSeconds = "mail_stage_processing_seconds",
        /// How long after their time due enrollments were taken up.
        SequenceLagSeconds = "mail_sequence_lag_seconds",
        /// Time an HTTP request took (labels: route, method).
        HttpRequestSeconds = "mail_http_request_seconds",
        /// Time from the ledger's batch to the server's acceptance (label: lane).
        SendLatencySeconds = "mail_send_latency_seconds",
        /// Time of one SMTP transaction, MAIL to the last answer (label: lane).
        SmtpTransactionSeconds = "mail_smtp_transaction_seconds",
        /// Time of one group commit of the delivery ledger writer (label: kind = claim, fence, result).
        LedgerCommitSeconds = "mail_ledger_commit_seconds",
        /// Time of one attempt to deliver to a webhook subscription (label: outcome = delivered, failed).
        WebhookAttemptSeconds = "mail_webhook_attempt_seconds",
        /// Time from a fact's commit to the end of the first attempt to deliver it.
        WebhookLatencySeconds = "mail_webhook_latency_seconds",
        /// Time of one commit of facts made into events.
        FanOutSeconds = "mail_fan_out_seconds",
    }
}

type Labels = Vec<(&'static str, SharedString)>;

fn labels<const N: usize>(pairs: [(&'static str, SharedString); N]) -> Labels {
    Vec::from(pairs)
}

impl Counter {
    /// Adds.
    pub fn add<const N: usize>(self, count: u64, pairs: [(&'static str, &'static str); N]) {
        metrics::counter!(self.name(), &labels(pairs.map(|(key, value)| (key, SharedString::const_str(value)))))
            .increment(count);
    }

    /// Adds, with a label made at run time from a bounded set (an HTTP status, a route).
    pub fn add_owned<const N: usize>(self, count: u64, pairs: [(&'static str, String); N]) {
        metrics::counter!(self.name(), &labels(pairs.map(|(key, value)| (key, SharedString::from_owned(value)))))
            .increment(count);
    }
}

impl Gauge {
    /// Sets the level.
    pub fn set<const N: usize>(self, level: f64, pairs: [(&'static str, &'static str); N]) {
        metrics::gauge!(self.name(), &labels(pairs.map(|(key, value)| (key, SharedString::const_str(value)))))
            .set(level);
    }

    /// Moves the level.
    pub fn add<const N: usize>(self, by: f64, pairs: [(&'static str, &'static str); N]) {
        metrics::gauge!(self.name(), &labels(pairs.map(|(key, value)| (key, SharedString::const_str(value)))))
            .increment(by);
    }
}

impl Histogram {
    /// Records one value, in seconds.
    pub fn record<const N: usize>(self, seconds: f64, pairs: [(&'static str, &'static str); N]) {
        metrics::histogram!(self.name(), &labels(pairs.map(|(key, value)| (key, SharedString::const_str(value)))))
            .record(seconds);
    }

    /// Records one value, in seconds, with a label made at run time from a bounded set.
    pub fn record_owned<const N: usize>(self, seconds: f64, pairs: [(&'static str, String); N]) {
        metrics::histogram!(self.name(), &labels(pairs.map(|(key, value)| (key, SharedString::from_owned(value)))))
            .record(seconds);
    }
}

/// Tells the recorder every metric's unit and meaning.
pub fn describe() {
    for counter in Counter::ALL {
        metrics::describe_counter!(counter.name(), Unit::Count, counter.help());
    }
    for gauge in Gauge::ALL {
        metrics::describe_gauge!(gauge.name(), gauge.help());
    }
    for histogram in Histogram::ALL {
        metrics::describe_histogram!(histogram.name(), Unit::Seconds, histogram.help());
    }
}
