//! The body of an enrollment request, and its validation.

use schemars::JsonSchema;
use schemas::{action::CONTACT_TEXT_MAX_CHARS, messages::ContactDetails};
use serde::Deserialize;
use uuid::Uuid;

use crate::{
    api::contacts::{ContactNames, EXTERNAL_ID_MAX_CHARS, NamedContact, check_details},
    pipeline::{
        Faults, Id,
        error::ApiError,
        types::{Email, Line, Name},
    },
};

/// The body of an enrollment, without the tenant.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EnrollContact {
    #[schemars(required)]
    sequence_id: Option<Id>,
    /// One of email, external_id and contact_id names the contact.
    #[schemars(with = "Option<Email>")]
    email: Option<String>,
    /// Instead of email: the contact's id in the product. The contact must be known.
    #[schemars(with = "Option<Name<EXTERNAL_ID_MAX_CHARS>>")]
    external_id: Option<String>,
    /// Instead of email. The contact must be known.
    contact_id: Option<Id>,
    #[schemars(with = "Option<Line<CONTACT_TEXT_MAX_CHARS>>")]
    first_name: Option<String>,
    #[schemars(with = "Option<Line<CONTACT_TEXT_MAX_CHARS>>")]
    last_name: Option<String>,
    #[schemars(with = "Option<Line<CONTACT_TEXT_MAX_CHARS>>")]
    title: Option<String>,
    #[schemars(with = "Option<Line<CONTACT_TEXT_MAX_CHARS>>")]
    phone: Option<String>,
}

/// An enrollment to be.
#[derive(Debug)]
pub(crate) struct NewEnrollment {
    pub(crate) sequence_id: Uuid,
    pub(crate) contact: NamedContact,
    pub(crate) details: ContactDetails,
}

impl EnrollContact {
    /// Checks its form.
    ///
    /// # Errors
    /// 400 with every fault.
    pub(crate) fn validate(self) -> Result<NewEnrollment, ApiError> {
        let mut faults = Faults::default();
        let sequence_id = faults.required("sequence_id", self.sequence_id);
        let names = ContactNames { contact_id: self.contact_id, email: self.email, external_id: self.external_id };
        let contact = names.check("", &mut faults);
        let details = ContactDetails {
            first_name: self.first_name,
            last_name: self.last_name,
            title: self.title,
            phone: self.phone,
        };
        check_details(&details, &mut faults);
        faults.finish()?;
        Ok(NewEnrollment {
            sequence_id: sequence_id.ok_or_else(ApiError::internal)?.0,
            contact: contact.ok_or_else(ApiError::internal)?,
            details,
        })
    }
}
