//! Finds the contact of an outcome.

use runtime::column;
use sqlx::PgConnection;
use uuid::Uuid;

/// The keys that name the contact of an outcome.
#[derive(Debug, Clone, Copy)]
pub struct ContactKeys<'a> {
    /// The tenant.
    pub tenant: Uuid,
    /// The contact's address, canonical.
    pub email: Option<&'a str>,
    /// The number of the contact's company.
    pub dot_number: Option<i64>,
}

/// The contacts that match keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MatchedContacts {
    /// The contact with the address.
    pub by_email: Option<Uuid>,
    /// The first fifty contacts with the number, which all contacts of a company share. That with the address first, then active and older
    /// ones.
    pub by_dot_number: Vec<Uuid>,
}

impl MatchedContacts {
    /// Whether the address leads to one contact and the number to others.
    pub fn is_conflict(&self) -> bool {
        self.by_email.is_some_and(|contact| !self.by_dot_number.is_empty() && !self.by_dot_number.contains(&contact))
    }

    /// The candidates, and the key that found them: the address goes before the number.
    pub fn candidates(&self) -> (&[Uuid], &'static str) {
        match &self.by_email {
            Some(contact) => (std::slice::from_ref(contact), "email"),
            None => (&self.by_dot_number, "dot_number"),
        }
    }
}

/// Finds the contacts of all keys, in their order.
pub async fn find(db: &mut PgConnection, keys: &[ContactKeys<'_>]) -> sqlx::Result<Vec<MatchedContacts>> {
    let mut found = vec![MatchedContacts::default(); keys.len()];
    let places: Vec<i32> = (0..).take(keys.len()).collect();
    let rows = sqlx::query_file!(
        "queries/outcomes/candidates.sql",
        &places,
        &column(keys, |keys| keys.tenant),
        &column(keys, |keys| keys.email) as &[Option<&str>],
        &column(keys, |keys| keys.dot_number) as &[Option<i64>],
    )
    .fetch_all(db)
    .await?;
    for row in rows {
        let Some(found) = usize::try_from(row.place).ok().and_then(|place| found.get_mut(place)) else { continue };
        if row.by_email {
            found.by_email = Some(row.contact_id);
        } else if !found.by_dot_number.contains(&row.contact_id) {
            found.by_dot_number.push(row.contact_id);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_different_contacts_are_a_conflict() {
        let (ann, bob) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let found =
            |by_email, by_dot_number: &[Uuid]| MatchedContacts { by_email, by_dot_number: by_dot_number.to_vec() };
        assert!(found(Some(ann), &[bob]).is_conflict());
        assert!(!found(Some(ann), &[bob, ann]).is_conflict() && !found(Some(ann), &[]).is_conflict());
        assert!(!found(None, &[bob]).is_conflict());
        assert_eq!(found(Some(ann), &[ann, bob]).candidates(), ([ann].as_slice(), "email"));
        assert_eq!(found(None, &[bob, ann]).candidates(), ([bob, ann].as_slice(), "dot_number"));
    }
}
