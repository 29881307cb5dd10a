//! What recipients did, noted down after they are answered: published to `mail.v1.signal.tracking`, tried for a while, then
//! given up and counted.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use chrono::Utc;
use http::{HeaderMap, header};
use runtime::{Counter, Publication};
use schemas::{Signal, SignalKind, subjects, token::TokenClaims};
use tokio::sync::Semaphore;

use crate::{pipeline::peer::Peer, public::rate::RateWindows, state::Ingress};

/// Signals waiting for the store's answer, per process; what comes on top is dropped and counted. Some 10 MB.
static WAITING: Semaphore = Semaphore::const_new(10_000);
/// Pauses between tries: a broker that restarts is back within them.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(8)];
/// Signals of one send that are published in a minute, by each process; what comes on top is answered, dropped and counted: the holder of
/// a link can follow it as often as they like.
const OF_A_SEND_PER_MINUTE: usize = 60;
static OF_SENDS: LazyLock<RateWindows> =
    LazyLock::new(|| RateWindows::new(OF_A_SEND_PER_MINUTE, Duration::from_secs(60)));
/// Longest User-Agent that is kept.
const USER_AGENT_MAX_CHARS: usize = 512;

/// Notes down that a recipient did something. Answers at once.
pub(crate) async fn record(
    ingress: &Arc<Ingress>,
    claims: &TokenClaims,
    kind: SignalKind,
    peer: Peer,
    headers: &HeaderMap,
) {
    let label = kind.label();
    if !OF_SENDS.admit(claims.send_id, 1).await {
        return count(label, "dropped");
    }
    let Ok(permit) = WAITING.try_acquire() else { return count(label, "dropped") };
    let signal = Signal {
        signal_id: schemas::new_id(),
        tenant_id: claims.tenant_id,
        send_id: claims.send_id,
        occurred_at: Utc::now(),
        kind,
        ip: peer.ip().map(|ip| ip.to_string()),
        user_agent: user_agent(headers),
    };
    let Ok(publication) =
        Publication::json(subjects::signal("tracking"), format!("signal-{}", signal.signal_id.simple()), &signal)
    else {
        return count(label, "dropped");
    };
    let bus = ingress.bus.clone();
    ingress.tasks.spawn(async move {
        let _permit = permit;
        for pause in PAUSES.into_iter().map(Some).chain([None]) {
            match (bus.publish_all(vec![publication.clone()]).await, pause) {
                (Ok(()), _) => return count(label, "published"),
                (Err(_), Some(pause)) => tokio::time::sleep(pause).await,
                (Err(error), None) => tracing::warn!(%error, kind = label, "a signal is lost"),
            }
        }
        count(label, "lost");
    });
}

fn count(kind: &'static str, outcome: &'static str) {
    Counter::SignalsTotal.add(1, [("kind", kind), ("outcome", outcome)]);
}

/// The client's User-Agent, as far as it is kept.
pub(crate) fn user_agent(headers: &HeaderMap) -> Option<String> {
    let text = String::from_utf8_lossy(headers.get(header::USER_AGENT)?.as_bytes());
    Some(text.chars().filter(|c| !c.is_control()).take(USER_AGENT_MAX_CHARS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_agent_is_cut_and_need_not_be_there() {
        let mut headers = HeaderMap::new();
        assert_eq!(user_agent(&headers), None);
        headers.insert(header::USER_AGENT, "x".repeat(600).parse().unwrap());
        assert_eq!(user_agent(&headers).unwrap().len(), USER_AGENT_MAX_CHARS);
    }
}
