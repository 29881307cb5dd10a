"""A contact is created and found again, and a refusal is told as such. Prints a JSON line for each."""

import json
import os

from postrider import connect
from postrider.api.contacts import create_contact, list_contacts
from postrider.models import CreateContact

client = connect(os.environ["POSTRIDER_API_URL"], os.environ["POSTRIDER_API_KEY"])
tenant = os.environ["POSTRIDER_API_TENANT"]

created = create_contact.sync(client=client, body=CreateContact(product_tenant_id=tenant, email="ann@example.com"))
print(json.dumps({"created": str(created.contact_id)}))
page = list_contacts.sync(client=client, product_tenant_id=tenant, limit=1)
print(json.dumps({"found": [str(contact.contact_id) for contact in page.contacts]}))
refused = create_contact.sync(client=client, body=CreateContact(product_tenant_id=tenant, email="nobody at all"))
print(json.dumps({"refused": str(refused.error)}))
