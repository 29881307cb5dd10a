//! The list itself. A new metric stands here first; `UPDATE=1 cargo test -p runtime --test it metrics_page` writes it to the page.

use super::{
    Metric,
    labels::{
        ANSWER, DIRECT, ENROLLMENT_END, EVENT, Emitter, FAILURE, LANE, Label, METHOD, PART, PROVIDER, RECEIVER,
        REQUEST, ROLE, SIGNAL, SKIP_REASON, SOURCE, STAGE, STATE, STEP, STREAM, VIA, Values, one_of,
    },
};

/// From an SMTP command on loopback to the longest transaction.
const WORK: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// One answer to a caller, up to the longest that is waited for.
const ANSWERING: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// A commit, or the wait for a connection.
const COMMIT: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0];
/// From a request to its end: milliseconds for one mail, a day for a deferred campaign.
const LATENCY: &[f64] =
    &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];

const INGRESS: Emitter = Emitter::Parts(&["ingress"]);
const DELIVERY: Emitter = Emitter::Parts(&["delivery"]);
const ENGAGEMENT: Emitter = Emitter::Parts(&["engagement"]);
const ATTRIBUTION: Emitter = Emitter::Parts(&["attribution"]);
/// The parts that read untrusted files.
const READING: Emitter = Emitter::Parts(&["ingress", "engagement"]);
const WEBHOOKS: Emitter = Emitter::Parts(&["webhooks"]);
const SEQUENCING: Emitter = Emitter::Parts(&["sequencing"]);

macro_rules! metric_set {
    ($(#[$meta:meta])* $name:ident { $(
        $(#[doc = $doc:literal])+
        $variant:ident = $text:literal [$($label:ident: $values:expr),*] from $emitter:expr $(=> $buckets:ident)?,
    )+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[doc = $doc])+ $variant,)+ }

        impl $name {
            /// Every member.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name as exported.
            #[must_use]
            pub fn name(self) -> &'static str { match self { $(Self::$variant => $text,)+ } }

            /// Its name, meaning, labels, emitter and buckets.
            #[must_use]
            pub fn metric(self) -> Metric {
                match self {
                    $(Self::$variant => Metric {
                        name: $text,
                        help: concat!($($doc),+).trim_ascii(),
                        labels: const { &[$(Label { name: stringify!($label), values: $values }),*] },
                        emitter: $emitter,
                        buckets: metric_set!(@buckets $($buckets)?),
                    },)+
                }
            }
        }
    };
    (@buckets) => { &[] };
    (@buckets $buckets:ident) => { $buckets };
}

metric_set! {
    /// Things counted since the process started.
    Counter {
        /// Messages a stage took from its stream.
        StageReceivedTotal = "mail_stage_received_total" [stage: PART, lane: LANE] from Emitter::Runner,
        /// Messages a stage finished with.
        StageHandledTotal = "mail_stage_handled_total"
            [stage: PART, lane: LANE, outcome: one_of!["done", "retried", "busy", "dead_lettered"]] from Emitter::Runner,
        /// Messages a stage published, and whose storage was confirmed.
        StagePublishedTotal = "mail_stage_published_total" [stage: PART, lane: LANE] from Emitter::Runner,
        /// Messages that were delivered again.
        StageRedeliveredTotal = "mail_stage_redelivered_total" [stage: PART, lane: LANE] from Emitter::Runner,
        /// Messages set aside for a person, by reason.
        StageDeadLetteredTotal = "mail_stage_dead_lettered_total"
            [stage: PART, lane: LANE, reason: Values::Codes(&["malformed"])] from Emitter::Runner,
        /// Pieces of work a sweep found and handled.
        SweepFoundTotal = "mail_sweep_found_total" [stage: PART, sweep: Values::Codes(&[])] from Emitter::Runner,
        /// Sweeps that failed; they run again.
        SweepFailedTotal = "mail_sweep_failed_total" [stage: PART, sweep: Values::Codes(&[])] from Emitter::Runner,
        /// Panics that were caught, by the stage and the kind of task. Each cost the task's current piece of work; the task continued.
        PanicsTotal = "mail_panics_total"
            [stage: PART, task: one_of!["handler", "worker", "sweep", "gauges", "heartbeat", "ledger_writer", "task"]] from Emitter::Every,
        /// Recipients withheld on purpose.
        SendsWithheldTotal = "mail_sends_withheld_total"
            [stage: one_of!["audience", "compliance", "delivery"], reason: SKIP_REASON]
            from Emitter::Parts(&["audience", "compliance", "delivery"]),
        /// Sends by the state they reached.
        SendsTotal = "mail_sends_total" [lane: LANE, state: STATE] from Emitter::Parts(&["audience", "rendering", "delivery"]),
        /// Sends that failed for good, by reason.
        SendsFailedTotal = "mail_sends_failed_total" [lane: LANE, class: FAILURE] from Emitter::Parts(&["rendering", "delivery"]),
        /// Answers of receiving servers, by what they mean; over the relay, or over a connection of a tenant's own.
        SmtpAnswersTotal = "mail_smtp_answers_total"
            [lane: LANE, class: ANSWER, route: one_of!["relay", "connection"]] from DELIVERY,
        /// Answers "later" of a receiver, which reduce the rate of one sending domain's mail to it.
        PaceDeferralsTotal = "mail_pace_deferrals_total" [receiver: RECEIVER] from DELIVERY,
        /// Sends postponed without an attempt, because the rate to their receiver is used up; each time counts.
        PacePostponedTotal = "mail_pace_postponed_total" [receiver: RECEIVER] from DELIVERY,
        /// SMTP connections: opened, or the step at which opening failed; to the relay, or to a server of a tenant's own.
        SmtpConnectionsTotal = "mail_smtp_connections_total"
            [outcome: one_of!["open", "connect", "greeting", "tls", "auth", "mail", "rcpt", "data", "body", "final"],
             route: one_of!["relay", "connection"]] from DELIVERY,
        /// Requests of the API answered, whether they came by HTTP or over the bus.
        HttpRequestsTotal = "mail_http_requests_total"
            [via: VIA, route: Values::Route, method: METHOD, status: Values::Status] from INGRESS,
        /// Requests that internal systems published, by outcome.
        DirectRequestsTotal = "mail_direct_requests_total" [kind: DIRECT, outcome: one_of!["accepted", "rejected"]] from INGRESS,
        /// Calls for the request log: written; dropped because too many waited; or lost because Postgres refused them.
        RequestLogTotal = "mail_request_log_total" [outcome: one_of!["written", "dropped", "lost"]] from INGRESS,
        /// Provider event requests, by outcome.
        HookRequestsTotal = "mail_hook_requests_total"
            [provider: PROVIDER, outcome: one_of!["stored", "repeated", "confirmed", "refused", "throttled", "failed"]] from INGRESS,
        /// Facts of provider events, by outcome.
        InboundFactsTotal = "mail_inbound_facts_total"
            [provider: SOURCE, outcome: one_of!["recorded", "pending", "joined", "dropped", "ignored", "malformed", "failed"]]
            from ENGAGEMENT,
        /// Inbound mails, by what they were; or why they were refused.
        InboundMailsTotal = "mail_inbound_mails_total"
            [outcome: one_of![
                "bounced", "delivered", "complained", "unsubscribed", "replied", "auto_replied", "delayed", "relayed", "receipt",
                "auth_failure", "no_report", "no_evidence", "unreadable", "given_up", "bad_address", "unknown_send", "too_large",
                "bare_line_end"
            ]] from ENGAGEMENT,
        /// Opens, clicks and unsubscribes: at the ingress (published, lost, dropped) and into the ledger (recorded, repeated, pending).
        SignalsTotal = "mail_signals_total"
            [kind: SIGNAL, outcome: one_of!["published", "lost", "dropped", "recorded", "repeated", "pending"]]
            from Emitter::Parts(&["ingress", "engagement"]),
        /// Events made of facts.
        EventsTotal = "mail_events_total" [type: EVENT] from WEBHOOKS,
        /// Events published to products' feeds on the bus.
        FeedEventsTotal = "mail_feed_events_total" [] from WEBHOOKS,
        /// Attempts to deliver to webhook subscriptions.
        WebhookAttemptsTotal = "mail_webhook_attempts_total" [outcome: one_of!["delivered", "failed", "dead", "disabled"]] from WEBHOOKS,
        /// Failed webhook attempts, by reason: a code of the engine.
        WebhookFailuresTotal = "mail_webhook_failures_total"
            [reason: Values::Codes(&[
                "timed_out", "connect_failed", "tls_failed", "dns_failed", "connection_lost", "address_not_allowed", "answer_too_large",
                "answer_malformed", "server_error", "refused", "redirected", "asked_to_wait", "gone"
            ])]
            from WEBHOOKS,
        /// Credits of outcomes that were set or restated.
        OutcomesCreditedTotal = "mail_outcomes_credited_total" [rule: one_of!["human_click", "delivered", "none"]] from ATTRIBUTION,
        /// Steps of sequences.
        SequenceStepsTotal = "mail_sequence_steps_total"
            [step_type: STEP, outcome: one_of!["done", "unchanged", "withheld", "retried", "failed"]] from SEQUENCING,
        /// Enrollments that ended, by reason.
        EnrollmentsEndedTotal = "mail_enrollments_ended_total" [reason: ENROLLMENT_END] from SEQUENCING,
        /// Calls of the assistant endpoint's tools.
        AssistantCallsTotal = "mail_assistant_calls_total" [tool: Values::Codes(&["unknown"]), outcome: Values::Codes(&["unknown_tool"])] from INGRESS,
        /// Requests to the assistant endpoint that were refused.
        AssistantRefusalsTotal = "mail_assistant_refusals_total"
            [reason: Values::Codes(&["missing_credentials", "invalid_token", "not_approved", "rate_limit_exceeded"])] from INGRESS,
        /// Jobs of reader processes (inbound mail, attachments), by outcome: done, over a limit, crashed, over the time limit; or not started,
        /// because no reader process was available.
        ReaderJobsTotal = "mail_reader_jobs_total"
            [kind: Values::Codes(&["inbound_mail", "attachment"]), outcome: one_of!["done", "spent", "crashed", "timed_out", "unavailable"]]
            from READING,
        /// Starts of reader processes.
        ReaderStartsTotal = "mail_reader_starts_total" [outcome: one_of!["started", "failed"]] from READING,
        /// Spans of traces: exported to the collector, dropped because it was too slow or the queue was full, or refused by it or lost with it.
        TraceSpansTotal = "mail_trace_spans_total" [outcome: one_of!["exported", "dropped", "refused"]] from Emitter::Every,
    }
}

metric_set! {
    /// Levels.
    Gauge {
        /// 1 for each stage, and for the ingress, that this process runs.
        StageRunning = "mail_stage_running" [stage: PART] from Emitter::Every,
        /// 1 for each paused stage; while the ledger is paused, for each stage that sends to the outside.
        Paused = "mail_paused" [stage: STAGE] from Emitter::Every,
        /// Tenants an operator has paused.
        TenantsPaused = "mail_tenants_paused" [] from Emitter::Every,
        /// 1 while the ledger is paused: after a restore nothing leaves until an operator releases it.
        LedgerPaused = "mail_ledger_paused" [] from Emitter::Every,
        /// Messages a stage is working on.
        StageInFlight = "mail_stage_in_flight" [stage: PART, lane: LANE] from Emitter::Runner,
        /// Messages waiting for a stage, by its stream.
        StagePending = "mail_stage_pending" [stage: PART, lane: LANE] from Emitter::Runner,
        /// Messages delivered to a stage and not acknowledged, over all processes.
        StageAckPending = "mail_stage_ack_pending" [stage: PART, lane: LANE] from Emitter::Runner,
        /// Age of the oldest message waiting for a stage, by its stream.
        StageOldestMessageAgeSeconds = "mail_stage_oldest_message_age_seconds" [stage: PART, lane: LANE] from Emitter::Runner,
        /// Age of the oldest work a stage owes, by the ledger; 0 when it owes none. Delivery owes all open batches: whether compliance,
        /// rendering or delivery has them, their streams show. Paused and deferred work is not owed, nor mail of a tenant whose own
        /// connection does not serve, nor a launch before its third announcement.
        BacklogOldestSeconds = "mail_backlog_oldest_seconds"
            [stage: one_of!["audience", "delivery", "engagement", "attribution", "webhooks", "sequencing"], lane: LANE] from Emitter::Every,
        /// Batches in the ledger that are not done, counted to 100,000: waiting for their time (timed) or for dispatch, announced, or resting with nothing open but
        /// deferred sends.
        BacklogBatches = "mail_backlog_batches" [lane: LANE, state: one_of!["timed", "waiting", "announced", "resting"]] from Emitter::Every,
        /// Most announcements of one batch; one or two is normal.
        BacklogAnnouncementsMax = "mail_backlog_announcements_max" [lane: LANE] from Emitter::Every,
        /// Requests accepted and not handled, counted to 10,000.
        BacklogRequests = "mail_backlog_requests" [kind: REQUEST] from Emitter::Every,
        /// Sends of the last seven days whose outcome is unknown, counted to 10,000 batches.
        UnknownSends = "mail_unknown_sends" [lane: LANE] from Emitter::Every,
        /// Age of the oldest unknown outcome; 0 when there is none.
        UnknownOldestSeconds = "mail_unknown_oldest_seconds" [lane: LANE] from Emitter::Every,
        /// Sends that wait for the rate of their throttle key: a sending domain's mail to one receiver.
        PaceWaiting = "mail_pace_waiting" [receiver: RECEIVER] from DELIVERY,
        /// Throttle keys with a reduced rate.
        PaceKeysThrottled = "mail_pace_keys_throttled" [receiver: RECEIVER] from DELIVERY,
        /// Sum of the rates of these throttle keys, in mails a second.
        PaceRate = "mail_pace_rate" [receiver: RECEIVER] from DELIVERY,
        /// Bytes a stream holds.
        StreamBytes = "mail_stream_bytes" [stream: STREAM] from Emitter::Every,
        /// Bytes a stream may hold; a full work queue refuses more, other streams discard their oldest.
        StreamBytesMax = "mail_stream_bytes_max" [stream: STREAM] from Emitter::Every,
        /// Messages a stream holds.
        StreamMessages = "mail_stream_messages" [stream: STREAM] from Emitter::Every,
        /// Age of the oldest message a stream holds; 0 when it is empty.
        StreamOldestSeconds = "mail_stream_oldest_seconds" [stream: STREAM] from Emitter::Every,
        /// Dead letters: messages that were set aside and wait for a person.
        DeadLetters = "mail_dead_letters" [stage: PART] from Emitter::Every,
        /// Open SMTP connections.
        SmtpConnectionsOpen = "mail_smtp_connections_open" [state: one_of!["idle", "busy"]] from DELIVERY,
        /// Postgres connections of this process.
        PoolConnections = "mail_pool_connections" [role: ROLE, state: one_of!["idle", "busy"]] from Emitter::Every,
        /// Postgres connections this process may open.
        PoolConnectionsMax = "mail_pool_connections_max" [role: ROLE] from Emitter::Every,
        /// Requests of the API being answered.
        HttpRequestsInFlight = "mail_http_requests_in_flight" [] from INGRESS,
        /// Pending facts: reported by providers and tracking links, and waiting for their send, counted to 10,000.
        PendingFacts = "mail_pending_facts" [] from Emitter::Every,
        /// How long the confirmation that waits longest is due, for a mail or its expiry; 0 when none waits. Its tenant has no default sender
        /// that may send, is paused, or has used up its hour (an import: its part of it); or the ledger is paused.
        ConfirmationsOldestSeconds = "mail_confirmations_oldest_seconds" [] from Emitter::Every,
        /// Webhook deliveries being tried by this process.
        WebhooksInFlight = "mail_webhooks_in_flight" [] from WEBHOOKS,
        /// Webhook subscriptions this process delivers to.
        WebhooksLeased = "mail_webhooks_leased" [] from WEBHOOKS,
        /// Webhook deliveries that are due to active subscriptions, over all processes, counted to 10,000.
        WebhooksDue = "mail_webhooks_due" [] from WEBHOOKS,
        /// How long the most overdue webhook delivery waits.
        WebhooksOldestDueSeconds = "mail_webhooks_oldest_due_seconds" [] from WEBHOOKS,
        /// Age of the oldest fact that is not an event yet.
        OutboxOldestSeconds = "mail_outbox_oldest_seconds" [] from WEBHOOKS,
        /// Always 1; the labels name the version and what runs.
        BuildInfo = "mail_build_info" [version: Values::Build, processes: Values::Build] from Emitter::Every,
    }
}

metric_set! {
    /// Distributions of times, in seconds.
    Histogram {
        /// Time a stage took for one group of messages.
        StageProcessingSeconds = "mail_stage_processing_seconds" [stage: PART, lane: LANE] from Emitter::Runner => WORK,
        /// How long after its time a due enrollment took its step.
        SequenceLagSeconds = "mail_sequence_lag_seconds" [] from SEQUENCING => LATENCY,
        /// Time a request of the API took.
        HttpRequestSeconds = "mail_http_request_seconds" [via: VIA, route: Values::Route, method: METHOD] from INGRESS => ANSWERING,
        /// Time from a request to the receiving server's acceptance of its mail; for a campaign's mail, from the start of the campaign; for a
        /// sequence's, from the step. For mail that waited for a time, as for the end of quiet hours, from that time.
        RequestLatencySeconds = "mail_request_latency_seconds" [lane: LANE] from DELIVERY => LATENCY,
        /// Time from the ledger's batch to the receiving server's acceptance.
        SendLatencySeconds = "mail_send_latency_seconds" [lane: LANE] from DELIVERY => LATENCY,
        /// Time of one SMTP transaction, MAIL to the last answer.
        SmtpTransactionSeconds = "mail_smtp_transaction_seconds" [lane: LANE] from DELIVERY => WORK,
        /// Time of one group commit of the delivery ledger writer.
        LedgerCommitSeconds = "mail_ledger_commit_seconds" [kind: one_of!["fence", "result", "both"]] from DELIVERY => COMMIT,
        /// Wait for a Postgres connection of the pool, measured once a second.
        PoolWaitSeconds = "mail_pool_wait_seconds" [role: ROLE] from Emitter::Every => COMMIT,
        /// Time of one attempt to deliver to a webhook subscription.
        WebhookAttemptSeconds = "mail_webhook_attempt_seconds" [outcome: one_of!["delivered", "failed"]] from WEBHOOKS => ANSWERING,
        /// Time from a fact's commit to the end of the first attempt to deliver it.
        WebhookLatencySeconds = "mail_webhook_latency_seconds" [] from WEBHOOKS => LATENCY,
        /// Time of one transaction that turns facts into events.
        FanOutSeconds = "mail_fan_out_seconds" [] from WEBHOOKS => COMMIT,
    }
}
