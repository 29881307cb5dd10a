//! Ids: UUIDv7 everywhere, and send ids that know their batch.
//!
//! A send's id is its batch's id with the position in the batch (0..=511) in the low nine bits, and both carry the launch
//! time. So a send is found by the primary key alone: the batch is a mask away and the month partition is in the
//! timestamp. A random id would need a second, random unique index, which costs more than half of the insert rate.
//! The ids of a launch follow from one another: an id from outside proves nothing without a MAC ([`crate::token`]).

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chrono::{DateTime, Datelike, NaiveDate, Utc};
use thiserror::Error;
use uuid::{ContextV7, NoContext, Timestamp, Uuid};

/// The most sends one batch holds.
pub const BATCH_MAX: usize = 500;

/// The most sends of a transactional batch that travels in the priority lane, and of a tenant's sequences under way in it. More take the bulk
/// lane, tenants in turn: they would stand before password resets.
pub const PROMPT_BATCH_MAX: usize = 50;

const ORDINAL_BITS: u32 = 9;
const ORDINAL_MASK: u128 = (1 << ORDINAL_BITS) - 1;
/// The low hex digits of a launch's ids that number its sends: 27 bits of batch number, nine of ordinal.
const NUMBER_DIGITS: usize = 9;
const NUMBER_MASK: u128 = (1 << (NUMBER_DIGITS * 4)) - 1;

/// How far the clock may read behind itself without having been set back: threads that read it together take their turns in any order.
const CLOCK_JITTER: Duration = Duration::from_secs(1);

/// The ids of this process: `Uuid::now_v7` never goes back, and once the clock was ahead makes ids of the future until that time comes.
static IDS: Mutex<IdSequence> = Mutex::new(IdSequence::new());

/// Makes UUIDv7s, each greater than the last one as long as the clock is not set back.
struct IdSequence {
    context: ContextV7,
    /// The latest that the clock read, since 1970.
    latest: Duration,
}

impl IdSequence {
    const fn new() -> Self {
        Self { context: ContextV7::new(), latest: Duration::ZERO }
    }

    fn next_at(&mut self, now: Duration) -> Uuid {
        if now + CLOCK_JITTER < self.latest {
            *self = Self::new();
        }
        self.latest = self.latest.max(now);
        Uuid::new_v7(Timestamp::from_unix(&self.context, now.as_secs(), now.subsec_nanos()))
    }
}

/// A fresh UUIDv7.
#[must_use]
pub fn new_id() -> Uuid {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    IDS.lock().unwrap_or_else(PoisonError::into_inner).next_at(now)
}

/// A fresh id for a batch of its own (not part of a launch): a UUIDv7 whose ordinal bits are zero.
#[must_use]
pub fn new_batch_id() -> Uuid {
    SendId(new_id()).batch()
}

/// An id for a batch that is due at this time: what follows from the id of a send, its partition and the date of the mail, is of that time.
#[must_use]
pub fn batch_id_due(at: DateTime<Utc>) -> Uuid {
    let seconds = u64::try_from(at.timestamp()).unwrap_or(0);
    let due = Timestamp::from_unix(NoContext, seconds, at.timestamp_subsec_nanos());
    SendId(Uuid::new_v7(due)).batch()
}

/// The smallest id of a time: ids begin with their millisecond.
#[must_use]
pub fn first_id(at: DateTime<Utc>) -> Uuid {
    Uuid::from_u128(u128::from(at.timestamp_millis().max(0).unsigned_abs()) << 80)
}

/// Why a text is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a UUID in its canonical lower-case form")]
pub struct IdError;

/// Parses an id in canonical form: 36 characters, lower case, dashed. `uuid` itself also takes urn, braced and undashed forms.
pub fn parse_id(text: &str) -> Result<Uuid, IdError> {
    if text.len() != 36 || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(IdError);
    }
    Uuid::try_parse(text).map_err(|_| IdError)
}

/// The first day of the UTC month in which an id was made: the partition its row lives in.
#[must_use]
pub fn month_of(id: Uuid) -> NaiveDate {
    made_at(id).date_naive().with_day(1).unwrap_or_default()
}

fn made_at(id: Uuid) -> DateTime<Utc> {
    let millis = i64::try_from(id.as_u128() >> 80).unwrap_or(0);
    DateTime::<Utc>::from_timestamp_millis(millis).unwrap_or_default()
}

/// A send's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SendId(pub Uuid);

impl SendId {
    /// The id of the send at `ordinal` in `batch`.
    #[must_use]
    pub fn of(batch: Uuid, ordinal: u16) -> Self {
        Self(Uuid::from_u128((batch.as_u128() & !ORDINAL_MASK) | (u128::from(ordinal) & ORDINAL_MASK)))
    }

    /// The batch this send belongs to.
    #[must_use]
    pub fn batch(self) -> Uuid {
        Uuid::from_u128(self.0.as_u128() & !ORDINAL_MASK)
    }

    /// The position in the batch.
    #[must_use]
    pub fn ordinal(self) -> u16 {
        u16::try_from(self.0.as_u128() & ORDINAL_MASK).unwrap_or(0)
    }

    /// When it was made: a request's when it was taken in or is due, a campaign's when the campaign started.
    #[must_use]
    pub fn made_at(self) -> DateTime<Utc> {
        made_at(self.0)
    }

    /// The month partition of the send's row.
    #[must_use]
    pub fn month(self) -> NaiveDate {
        month_of(self.0)
    }

    /// The last id a send of `batch` can have: `id between batch and last_of(batch)` is the whole batch.
    #[must_use]
    pub fn last_of(batch: Uuid) -> Uuid {
        Uuid::from_u128(batch.as_u128() | ORDINAL_MASK)
    }
}

/// The common part of all ids of one launch. Postgres numbers the sends behind it, in one set-based insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchId(Uuid);

impl LaunchId {
    /// A fresh launch: 38 random bits beside the millisecond. Without the counter that [`new_id`] keeps: of two ids of one
    /// millisecond it makes neighbours, which are one launch.
    #[must_use]
    pub fn fresh() -> Self {
        Self(Uuid::new_v7(Timestamp::now(NoContext)))
    }

    /// The 23 hex digits that all ids of the launch share; `(prefix || lpad(to_hex(batch_no << 9 | ordinal), 9, '0'))::uuid`
    /// is a send's id.
    #[must_use]
    pub fn prefix(self) -> String {
        let mut hex = self.0.simple().to_string();
        hex.truncate(32 - NUMBER_DIGITS);
        hex
    }

    /// The month partition of the launch.
    #[must_use]
    pub fn month(self) -> NaiveDate {
        month_of(self.0)
    }

    /// The number of a batch in its launch.
    #[must_use]
    pub fn number_of(batch: Uuid) -> i64 {
        i64::try_from((batch.as_u128() & NUMBER_MASK) >> ORDINAL_BITS).unwrap_or(0)
    }

    /// The id of the launch's batch of this number, as the SQL computes it.
    #[must_use]
    pub fn batch(self, number: u32) -> Uuid {
        let low = u128::from(number) << ORDINAL_BITS;
        Uuid::from_u128((self.0.as_u128() & !NUMBER_MASK) | (low & NUMBER_MASK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn the_id_of_a_later_batch_has_its_time_and_is_its_own() {
        let due = Utc::now() + chrono::TimeDelta::days(30);
        let (one, other) = (batch_id_due(due), batch_id_due(due));
        assert_ne!(one, other);
        assert_eq!(SendId(one).ordinal(), 0);
        assert_eq!(SendId(one).made_at().timestamp_millis(), due.timestamp_millis());
    }

    #[test]
    fn ids_made_later_are_greater() {
        let now = Utc::now();
        let id = new_id();
        assert!(first_id(now - chrono::TimeDelta::milliseconds(1)) < id);
        assert!(id < first_id(now + chrono::TimeDelta::minutes(1)));
    }

    #[test]
    fn ids_are_of_now_after_the_clock_was_ahead_and_ascend_within_a_millisecond() {
        let now = Duration::from_secs(1_800_000_000);
        let second_of = |id: Uuid| made_at(id).timestamp();
        let mut ids = IdSequence::new();
        let ahead = ids.next_at(now + Duration::from_secs(86_400));
        assert_eq!(second_of(ahead), 1_800_086_400);
        let many: Vec<Uuid> = (0..1_000).map(|_| ids.next_at(now)).collect();
        assert_eq!((second_of(many[0]), second_of(many[999])), (1_800_000_000, 1_800_000_000));
        assert!(many.is_sorted_by(|one, next| one < next));
        // Another thread read the clock a little earlier.
        assert!(ids.next_at(now - Duration::from_millis(5)) > many[999]);
    }

    #[test]
    fn a_send_knows_its_batch_and_place() {
        let batch = new_batch_id();
        for ordinal in [0, 1, 499, 511] {
            let send = SendId::of(batch, ordinal);
            assert_eq!((send.batch(), send.ordinal()), (batch, ordinal));
            assert!(send.0 >= batch && send.0 <= SendId::last_of(batch));
        }
    }

    #[test]
    fn a_launch_prefix_and_number_make_the_batch_id() {
        let launch = LaunchId::fresh();
        for number in [0_u32, 1, 77, 200_000] {
            let text = format!("{}{:09x}", launch.prefix(), u64::from(number) << 9);
            assert_eq!(Uuid::try_parse(&text).unwrap(), launch.batch(number));
            assert_eq!(launch.batch(number).get_version_num(), 7);
            assert_eq!(LaunchId::number_of(launch.batch(number)), i64::from(number));
        }
    }

    #[test]
    fn launches_of_the_same_millisecond_are_different_ones() {
        let mut prefixes: Vec<String> = (0..100).map(|_| LaunchId::fresh().prefix()).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        assert_eq!(prefixes.len(), 100);
    }

    #[test]
    fn the_month_of_an_id_is_the_month_it_was_made_in() {
        assert_eq!(month_of(new_id()), Utc::now().date_naive().with_day(1).unwrap());
    }

    #[rstest]
    #[case("0198c0de-0000-7000-8000-000000000001", true)]
    #[case("0198C0DE-0000-7000-8000-000000000001", false)]
    #[case("0198c0de000070008000000000000001", false)]
    #[case("urn:uuid:0198c0de-0000-7000-8000-000000000001", false)]
    #[case("{0198c0de-0000-7000-8000-00000000001}", false)]
    #[case("", false)]
    fn only_the_canonical_form_is_an_id(#[case] text: &str, #[case] good: bool) {
        assert_eq!(parse_id(text).is_ok(), good);
    }
}
