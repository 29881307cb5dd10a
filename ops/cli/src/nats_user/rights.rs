//! Which user may publish and subscribe to which subjects: the table that `ops/nats` is generated from.

use runtime::streams::{Keeps, STREAMS};
use schemas::{
    DirectKind,
    subjects::{self, stream},
};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NatsRights {
    pub publish: Vec<String>,
    pub subscribe: Vec<String>,
    /// True if it may reply on any reply subject of a request.
    pub responds: bool,
}

/// A process of the engine, or a person who runs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct NatsRole {
    /// Its name: as `postrider stage` has it, or `ingress`, `engine_all`, `operator`.
    pub name: &'static str,
    /// What it does, for the file.
    pub about: &'static str,
    /// Streams it reads, and through which durable consumer.
    reads: &'static [(&'static str, &'static str)],
    /// Subjects it publishes to, besides those of every process.
    publishes: &'static [&'static str],
    /// Subjects it subscribes to, besides those of every process.
    subscribes: &'static [&'static str],
}

/// The engine's processes.
pub(super) const ROLES: &[NatsRole] = &[
    NatsRole {
        name: "audience",
        about: "accepted requests in, batches out",
        reads: &[
            (stream::ACCEPTED, "audience-priority"),
            (stream::ACCEPTED, "audience-arrays"),
            (stream::ACCEPTED, "audience-bulk"),
        ],
        publishes: &["mail.v1.resolved.*", "mail.v1.cleared.priority", "mail.v1.accepted.*.*.*"],
        subscribes: &[],
    },
    NatsRole {
        name: "compliance",
        about: "batches in, those who may be mailed out",
        reads: &[(stream::RESOLVED, "compliance-priority"), (stream::RESOLVED, "compliance-bulk")],
        publishes: &["mail.v1.cleared.*"],
        subscribes: &[],
    },
    NatsRole {
        name: "rendering",
        about: "recipients in, their mail out",
        reads: &[(stream::CLEARED, "rendering-priority"), (stream::CLEARED, "rendering-bulk")],
        publishes: &["mail.v1.rendered.*"],
        subscribes: &[],
    },
    NatsRole {
        name: "delivery",
        about: "mail in; the sandbox's facts out",
        reads: &[(stream::RENDERED, "delivery-priority"), (stream::RENDERED, "delivery-bulk")],
        // It increments the ledger's epoch: only a process that sends mail publishes it.
        publishes: &["mail.v1.signal.sandbox", subjects::MARK],
        subscribes: &[],
    },
    NatsRole {
        name: "engagement",
        about: "opens, clicks, bounces, replies in",
        reads: &[(stream::SIGNALS, "engagement-priority"), (stream::SIGNALS, "engagement-bulk")],
        publishes: &["mail.v1.signal.inbound"],
        subscribes: &[],
    },
    NatsRole {
        name: "attribution",
        about: "outcomes in",
        reads: &[(stream::ACCEPTED, "attribution-priority")],
        publishes: &[],
        subscribes: &[],
    },
    NatsRole {
        name: "webhooks",
        about: "facts in, events out",
        reads: &[(stream::FACTS, "webhooks-priority")],
        publishes: &["mail.v1.event.>", subjects::DELIVERIES_DUE],
        subscribes: &[subjects::DELIVERIES_DUE],
    },
    NatsRole {
        name: "sequencing",
        about: "due times in, mail out",
        reads: &[],
        publishes: &["mail.v1.resolved.*", "mail.v1.accepted.*.*.*"],
        subscribes: &[],
    },
    NatsRole {
        name: "ingress",
        about: "direct requests in; accepted requests, batches of prompt mail and signals out, answers of stages in; serves products' calls",
        reads: &[
            (stream::REQUESTS, "ingress-prompt"),
            (stream::REQUESTS, "ingress-transactional"),
            (stream::REQUESTS, "ingress-launches"),
        ],
        publishes: &[
            // A request of an unknown kind is reported and removed: no consumer takes it.
            "$JS.API.STREAM.MSG.DELETE.MAIL_REQUESTS",
            "mail.v1.accepted.*.*.*",
            "mail.v1.resolved.priority",
            "mail.v1.cleared.priority",
            "mail.v1.signal.*",
            "mail.v1.event.*.*.request.rejected",
            // Products follow their events through consumers that only the ingress makes.
            "$JS.API.CONSUMER.NAMES.MAIL_EVENTS",
            "$JS.API.CONSUMER.INFO.MAIL_EVENTS.*",
            "$JS.API.CONSUMER.CREATE.MAIL_EVENTS.>",
            "$JS.API.CONSUMER.DELETE.MAIL_EVENTS.*",
        ],
        subscribes: &["mail.v1.reply.*", "mail.v1.api.>", "$SRV.>"],
    },
];

/// What every process may do with streams: see whether they are there, and make those in memory, which a server that is started again has
/// lost; the ledger announces again what they held. The others are made and changed by operators (`postrider streams apply`) alone.
fn stream_rights() -> impl Iterator<Item = String> {
    let in_memory = STREAMS.iter().filter(|spec| spec.keeps == Keeps::InMemory);
    let may_make = in_memory.map(|spec| format!("$JS.API.STREAM.CREATE.{}", spec.name));
    std::iter::once("$JS.API.STREAM.INFO.*".to_owned()).chain(may_make)
}

/// The role that answers requests, under whatever subject it was asked for an answer.
const ANSWERS: &str = "ingress";
/// The user of a process that runs several stages.
pub(super) const ENGINE_ALL: &str = "engine_all";

impl NatsRole {
    pub fn rights(&self) -> NatsRights {
        let mut publish: Vec<String> = stream_rights().collect();
        for (stream, durable) in self.reads {
            publish.extend([
                format!("$JS.API.CONSUMER.CREATE.{stream}.{durable}"),
                // With a single subject to read, its name stands in the request's.
                format!("$JS.API.CONSUMER.CREATE.{stream}.{durable}.>"),
                format!("$JS.API.CONSUMER.INFO.{stream}.{durable}"),
                format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"),
                format!("$JS.ACK.{stream}.{durable}.>"),
            ]);
        }
        let mut streams: Vec<&str> = self.reads.iter().map(|(stream, _)| *stream).collect();
        streams.push(stream::MARKS);
        streams.dedup();
        for stream in streams {
            publish.extend([
                format!("$JS.API.STREAM.MSG.GET.{stream}"),
                format!("$JS.API.DIRECT.GET.{stream}"),
                format!("$JS.API.DIRECT.GET.{stream}.>"),
            ]);
        }
        publish.extend(self.publishes.iter().map(|subject| (*subject).to_owned()));
        publish.extend([
            subjects::fact(self.name),
            subjects::dead(self.name),
            subjects::reply("*"),
            subjects::control_answer("*"),
        ]);
        let subscribes = [subjects::CONTROL].into_iter().chain(self.subscribes.iter().copied()).map(str::to_owned);
        let subscribe = std::iter::once(format!("{}.>", subjects::inbox(self.name))).chain(subscribes).collect();
        NatsRights { publish, subscribe, responds: self.name == ANSWERS }
    }
}

/// One process that runs the ingress and every stage.
pub(super) fn engine_all() -> NatsRights {
    let publish = [
        "$JS.API.CONSUMER.NAMES.*",
        "$JS.API.CONSUMER.CREATE.>",
        "$JS.API.CONSUMER.INFO.*.*",
        "$JS.API.CONSUMER.MSG.NEXT.*.*",
        "$JS.API.CONSUMER.DELETE.MAIL_EVENTS.*",
        "$JS.API.STREAM.MSG.DELETE.MAIL_REQUESTS",
        "$JS.API.STREAM.MSG.GET.*",
        "$JS.API.DIRECT.GET.>",
        "$JS.ACK.>",
        "mail.v1.>",
    ];
    let subscribes = ["mail.v1.reply.*", subjects::DELIVERIES_DUE, subjects::CONTROL, "mail.v1.api.>", "$SRV.>"];
    // A process of one stage may be given this user, too.
    let roles = ROLES.iter().map(|role| role.name).chain([ENGINE_ALL]);
    let inboxes = roles.map(|role| format!("{}.>", subjects::inbox(role)));
    NatsRights {
        publish: stream_rights().chain(publish.map(str::to_owned)).collect(),
        subscribe: inboxes.chain(subscribes.map(str::to_owned)).collect(),
        responds: true,
    }
}

/// People who run the engine: `postrider streams`, `postrider dead`, pause switches, the nats tool.
pub(super) fn operator() -> NatsRights {
    let publish = [
        "$JS.API.>",
        "$JS.ACK.>",
        "$SRV.>",
        "mail.v1.request.*.*.*",
        "mail.v1.accepted.*.*.*",
        "mail.v1.resolved.*",
        "mail.v1.cleared.*",
        "mail.v1.rendered.*",
        "mail.v1.signal.*",
        "mail.v1.fact.*",
        subjects::CONTROL,
        subjects::MARK,
    ];
    let (publish, subscribe) = (publish.map(str::to_owned), ["_INBOX.>", "mail.v1.>"].map(str::to_owned));
    NatsRights { publish: publish.into(), subscribe: subscribe.into(), responds: false }
}

/// Under which products' clients find the part of JetStream that is theirs: the prefix they give instead of `$JS.API`. Under that
/// name every account has an interface of its own, which would answer, too: that there is no JetStream in it.
pub(super) const FOLLOW: &str = "mail.v1.follow";

/// A product's own programs: in its own name, and nothing else. Of JetStream it reaches its own consumers of its own events.
pub(super) fn product(product: &str, environment: &str, consumers: &[String]) -> NatsRights {
    // Only the known kinds: a request without a consumer would stay in the stream.
    let kinds = DirectKind::ALL.iter().map(|kind| format!("mail.v1.request.{product}.{environment}.{kind}"));
    let mut publish: Vec<String> = kinds.collect();
    publish.extend([
        format!("mail.v1.api.{product}.{environment}.>"),
        "$SRV.PING.postrider".to_owned(),
        "$SRV.INFO.postrider".to_owned(),
    ]);
    for consumer in consumers {
        let durable = format!("{}.{}", stream::EVENTS, subjects::event_consumer(product, environment, consumer));
        publish.extend([
            format!("{FOLLOW}.CONSUMER.INFO.{durable}"),
            format!("{FOLLOW}.CONSUMER.MSG.NEXT.{durable}"),
            format!("$JS.ACK.{durable}.>"),
        ]);
    }
    let (events, answers) = (format!("mail.v1.event.{product}.{environment}.>"), inbox(product, environment));
    NatsRights { publish, subscribe: vec![events, format!("{answers}.>")], responds: false }
}

/// The subject on which only this product's client may listen for answers.
pub(super) fn inbox(product: &str, environment: &str) -> String {
    subjects::inbox(&format!("{product}_{environment}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::Environment;

    /// Whether a subject, or everything a pattern stands for, is within a pattern.
    fn covers(pattern: &str, subject: &str) -> bool {
        let (mut wanted, mut given) = (pattern.split('.'), subject.split('.'));
        loop {
            match (wanted.next(), given.next()) {
                (Some(">"), Some(_)) | (None, None) => return true,
                (Some("*"), Some(token)) if token != ">" => {}
                (Some(wanted), Some(given)) if wanted == given => {}
                _ => return false,
            }
        }
    }

    fn may_publish(rights: &NatsRights, subject: &str) -> bool {
        rights.publish.iter().any(|pattern| covers(pattern, subject))
    }

    #[test]
    fn a_process_of_everything_may_do_what_each_stage_may() {
        let all = engine_all();
        for role in ROLES {
            for subject in role.rights().publish {
                assert!(may_publish(&all, &subject), "{} may publish {subject}", role.name);
            }
            for subject in role.rights().subscribe {
                assert!(all.subscribe.iter().any(|pattern| covers(pattern, &subject)), "{} hears {subject}", role.name);
            }
        }
    }

    #[test]
    fn no_mail_process_may_remove_messages_from_a_stream() {
        for rights in ROLES
            .iter()
            .map(NatsRole::rights)
            .chain([engine_all(), product("acme", "production", &["events".to_owned()])])
        {
            for subject in [
                "$JS.API.STREAM.PURGE.MAIL_EVENTS",
                "$JS.API.STREAM.DELETE.MAIL_EVENTS",
                "$JS.API.STREAM.MSG.DELETE.MAIL_EVENTS",
            ] {
                assert!(!may_publish(&rights, subject), "{subject}");
            }
        }
    }

    #[test]
    fn only_operators_make_and_change_streams() {
        for rights in ROLES.iter().map(NatsRole::rights).chain([engine_all()]) {
            for subject in ["$JS.API.STREAM.CREATE.MAIL_REQUESTS", "$JS.API.STREAM.UPDATE.MAIL_REQUESTS"] {
                assert!(!may_publish(&rights, subject), "{subject}");
            }
        }
        assert!(may_publish(&operator(), "$JS.API.STREAM.UPDATE.MAIL_REQUESTS"));
    }

    #[test]
    fn each_role_has_an_own_inbox_and_only_the_ingress_replies() {
        for role in ROLES {
            let rights = role.rights();
            let inboxes: Vec<&String> =
                rights.subscribe.iter().filter(|subject| subject.starts_with("_INBOX")).collect();
            assert_eq!(inboxes, [&format!("{}.>", subjects::inbox(role.name))]);
            assert_eq!(rights.responds, role.name == "ingress", "{}", role.name);
            assert_eq!(may_publish(&rights, subjects::MARK), role.name == "delivery", "{}", role.name);
        }
    }

    #[test]
    fn a_product_reaches_its_own_name_only() {
        let rights = product("acme", "production", &["events".to_owned()]);
        assert!(may_publish(&rights, "mail.v1.request.acme.production.transactional"));
        assert!(may_publish(&rights, "mail.v1.follow.CONSUMER.MSG.NEXT.MAIL_EVENTS.acme_production_events"));
        assert!(!rights.publish.iter().any(|pattern| pattern.starts_with("$JS.API")));
        for other in [
            "mail.v1.request.acme.sandbox.transactional",
            "mail.v1.request.acme.production.postcard",
            "mail.v1.request.rival.production.transactional",
            "mail.v1.accepted.acme.production.transactional",
            "$JS.API.CONSUMER.CREATE.MAIL_EVENTS.acme_production_events",
            "mail.v1.follow.CONSUMER.MSG.NEXT.MAIL_EVENTS.acme_sandbox_events",
            "$JS.API.CONSUMER.MSG.NEXT.MAIL_REQUESTS.ingress-prompt",
        ] {
            assert!(!may_publish(&rights, other), "{other}");
        }
    }

    #[test]
    fn every_environment_has_an_inbox_of_its_own() {
        let inboxes: std::collections::BTreeSet<String> =
            Environment::ALL.iter().map(|environment| inbox("acme", environment.as_str())).collect();
        assert_eq!(inboxes.len(), Environment::ALL.len());
    }
}
