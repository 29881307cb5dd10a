//! The body of an enrollment request, and its validation.

use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use crate::{
    api::contacts::{ContactNames, EXTERNAL_ID_MAX_CHARS, NamedContact},
    pipeline::{
        Faults, Id,
        error::ApiError,
        types::{Email, Line, Name},
    },
};

/// Longest contact field, in characters.
const FIELD_MAX: usize = 200;

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
    #[schemars(with = "Option<Line<FIELD_MAX>>")]
    first_name: Option<String>,
    #[schemars(with = "Option<Line<FIELD_MAX>>")]
    last_name: Option<String>,
    #[schemars(with = "Option<Line<FIELD_MAX>>")]
    title: Option<String>,
    #[schemars(with = "Option<Line<FIELD_MAX>>")]
    phone: Option<String>,
}

/// An enrollment to be.
#[derive(Debug)]
pub(crate) struct NewEnrollment {
    pub(crate) sequence_id: Uuid,
    pub(crate) contact: NamedContact,
    pub(crate) first_name: Option<String>,
    pub(crate) last_name: Option<String>,
    pub(crate) title: Option<String>,
    pub(crate) phone: Option<String>,
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
        for (path, text) in [
            ("first_name", &self.first_name),
            ("last_name", &self.last_name),
            ("title", &self.title),
            ("phone", &self.phone),
        ] {
            faults.one_line(path, text.as_deref().unwrap_or_default(), FIELD_MAX);
        }
        faults.finish()?;
        Ok(NewEnrollment {
            sequence_id: sequence_id.ok_or_else(ApiError::internal)?.0,
            contact: contact.ok_or_else(ApiError::internal)?,
            first_name: self.first_name,
            last_name: self.last_name,
            title: self.title,
            phone: self.phone,
        })
    }
}
