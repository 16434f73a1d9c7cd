CREATE CONTRACT [//depot/Delivery]
    ([//depot/Pallet] SENT BY INITIATOR);
