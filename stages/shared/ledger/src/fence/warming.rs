//! The warm-up of new sending domains at the fence: mails pass up to the day's cap; campaigns above it wait for the next day.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use chrono::{Days, NaiveDate, NaiveTime, Utc};
use schemas::{MessageKind, SendState};
use sqlx::PgConnection;

use super::{Change, SendAttempt, commit::Undecided, meter::Remaining, sql::WarmupTotals};
use crate::gate::WARMUP;
use crate::schedule::fraction;
use crate::warmup::{self, DomainKey};

/// Batches that wait for the next day are spread over this time after midnight.
const DAWN: Duration = Duration::from_secs(30 * 60);

/// The domains of one commit that are in warm-up. They stay locked until the commit is done.
#[derive(Debug, Default)]
pub(super) struct Warming {
    today: NaiveDate,
    /// Mails left for today; `None`: the plan is over.
    left: HashMap<DomainKey, Option<Remaining>>,
}

impl Warming {
    /// Locks the domains of these fences that are in warm-up, and reads what is left.
    pub async fn open(db: &mut PgConnection, fences: &[SendAttempt]) -> sqlx::Result<Self> {
        let domains: Vec<DomainKey> =
            fences.iter().filter_map(SendAttempt::warming).collect::<BTreeSet<_>>().into_iter().collect();
        let mut warming = Self::default();
        if domains.is_empty() {
            return Ok(warming);
        }
        warmup::lock(db, &domains).await?;
        // A statement of its own after the lock: it sees the commit of the previous lock holder.
        for state in warmup::load_states(db, &domains).await? {
            warming.today = state.today;
            if state.is_on {
                warming.left.insert((state.tenant_id, state.domain_id), state.remaining().map(Remaining::new));
            }
        }
        Ok(warming)
    }

    /// Lets a fence pass, or defers a campaign's mail to the next day. A send that already counts always passes.
    ///
    /// # Errors
    /// [`Undecided::LimitReached`].
    pub fn admit(&mut self, change: Change) -> Result<Change, Undecided> {
        if change.to != SendState::Fenced || change.metered() == 0 {
            return Ok(change);
        }
        let Some(Some(left)) = change.send.warming().and_then(|domain| self.left.get_mut(&domain)) else {
            return Ok(change);
        };
        let taken = left.take();
        if change.send.batch.kind != MessageKind::Campaign {
            return Ok(change);
        }
        Ok(if taken? { change } else { until_tomorrow(change.send, self.today) })
    }

    /// The usage of the changes that took place; negative for fences that are taken back.
    pub fn usage<'a>(&self, moved: impl Iterator<Item = &'a Change>, today: NaiveDate) -> WarmupTotals {
        let mut usage = WarmupTotals::new();
        for change in moved {
            let (count, Some(domain)) = (change.metered(), change.send.warming()) else { continue };
            let day = if count < 0 { change.send.metered_on } else { self.left.contains_key(&domain).then_some(today) };
            if let Some(day) = day.filter(|_| count != 0) {
                *usage.entry((domain.0, domain.1, day)).or_default() += count;
            }
        }
        usage.retain(|_, count| *count != 0);
        usage
    }
}

/// Defers a send to the next UTC day, because the day's cap is reached.
pub fn until_tomorrow(send: SendAttempt, today: NaiveDate) -> Change {
    let midnight = today.checked_add_days(Days::new(1)).unwrap_or(NaiveDate::MAX).and_time(NaiveTime::MIN).and_utc();
    let wait = (midnight - Utc::now()).to_std().unwrap_or_default() + DAWN.mul_f64(fraction(send.seed(), 0));
    Change::waiting(send, WARMUP, wait)
}
